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

function(deltaworks_add_cuda_library name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE include src)
  set_target_properties(${name} PROPERTIES CUDA_STANDARD 20 CUDA_VISIBILITY_PRESET hidden)
  # As on the CPU: where a fused multiply-add is meant, it is written.
  target_compile_options(${name} PRIVATE --fmad=false --expt-relaxed-constexpr
    -Xcompiler=-Wall,-Wextra,-Wshadow $<$<BOOL:${DELTAWORKS_WERROR}>:-Werror=all-warnings>)
endfunction()

# Hopper's matrix instructions are in code for 90a alone, which no other card runs; the rest keeps code for
# 90, whose PTX newer cards compile. A build without 90 has the engine's stub.
set(chunked_source ${PROJECT_SOURCE_DIR}/src/cuda/gated_delta_net_chunked.cu)
set(chunked_stub ${PROJECT_SOURCE_DIR}/src/cuda/gated_delta_net_chunked_none.cu)
file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu)
list(REMOVE_ITEM cuda_sources ${chunked_source} ${chunked_stub})
set(DELTAWORKS_CUDA_OBJECTS $<TARGET_OBJECTS:deltaworks_cuda>)  # install.cmake links them once more
if(DELTAWORKS_CUDA_ARCHITECTURES MATCHES "(^|;)90a?(-real|-virtual)?(;|$)")
  deltaworks_add_cuda_library(deltaworks_cuda ${cuda_sources})
  deltaworks_add_cuda_library(deltaworks_cuda_hopper ${chunked_source})
  set_target_properties(deltaworks_cuda_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
  list(APPEND DELTAWORKS_CUDA_OBJECTS $<TARGET_OBJECTS:deltaworks_cuda_hopper>)
else()
  deltaworks_add_cuda_library(deltaworks_cuda ${cuda_sources} ${chunked_stub})
endif()

target_sources(deltaworks_core PRIVATE ${DELTAWORKS_CUDA_OBJECTS})
# Only linked: nvcc knows its headers, and no other file of the core needs them.
target_link_libraries(deltaworks_core PRIVATE $<LINK_ONLY:CUDA::cudart_static>)
