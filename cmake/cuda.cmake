# The CUDA backend, sm_80 upward: compiled where nvcc is found. Without it the same functions exist and
# say that this build has no CUDA.
set(DELTAWORKS_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE DELTAWORKS_CUDA PROPERTY STRINGS AUTO ON OFF)
set(DELTAWORKS_CUDA_ARCHITECTURES "80;86;89;90" CACHE STRING "What the CUDA backend is compiled for")

if(DELTAWORKS_CUDA)  # AUTO is true
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DELTAWORKS_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "DELTAWORKS_CUDA is ${DELTAWORKS_CUDA}, but no nvcc is found: put it on the PATH or into CUDACXX.")
  endif()
endif()
if(NOT DELTAWORKS_CUDA OR NOT CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA backend: off")
  target_sources(deltaworks_core PRIVATE src/cuda/none.cpp)
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES ${DELTAWORKS_CUDA_ARCHITECTURES})
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 and later have it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu)
add_library(deltaworks_cuda OBJECT ${cuda_sources})
target_include_directories(deltaworks_cuda PRIVATE include src)
set_target_properties(deltaworks_cuda PROPERTIES CUDA_STANDARD 20 CUDA_VISIBILITY_PRESET hidden)
# As on the CPU: where a fused multiply-add is meant, it is written.
target_compile_options(deltaworks_cuda PRIVATE --fmad=false --expt-relaxed-constexpr
  -Xcompiler=-Wall,-Wextra,-Wshadow $<$<BOOL:${DELTAWORKS_WERROR}>:-Werror=all-warnings>)

target_sources(deltaworks_core PRIVATE $<TARGET_OBJECTS:deltaworks_cuda>)
# Only linked: nvcc knows its headers, and no other file of the core needs them.
target_link_libraries(deltaworks_core PRIVATE $<LINK_ONLY:CUDA::cudart_static>)
