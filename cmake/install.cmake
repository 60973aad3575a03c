# The C++ library: build/release/lib/libdeltaworks.so, and a CMake package from `cmake --install`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The core's own objects: nothing is compiled twice, and the tests run what is installed.
add_library(deltaworks SHARED $<TARGET_OBJECTS:deltaworks_core>)
add_library(deltaworks::deltaworks ALIAS deltaworks)
set_target_properties(deltaworks PROPERTIES
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
target_include_directories(deltaworks INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(deltaworks INTERFACE cxx_std_20)
target_link_options(deltaworks PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  target_link_options(deltaworks PRIVATE LINKER:--no-undefined)
endif()
target_link_libraries(deltaworks PRIVATE $<BUILD_INTERFACE:hwy::hwy>)
if(TARGET deltaworks_cuda)
  target_sources(deltaworks PRIVATE ${DELTAWORKS_CUDA_OBJECTS})
  target_link_libraries(deltaworks PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
endif()

install(TARGETS deltaworks EXPORT deltaworks-targets)
install(DIRECTORY include/deltaworks DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/deltaworks)
install(EXPORT deltaworks-targets NAMESPACE deltaworks:: DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/deltaworks-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES cmake/deltaworks-config.cmake ${CMAKE_BINARY_DIR}/deltaworks-config-version.cmake
  DESTINATION ${package})
