# Every dependency, with the Debian 12 version that this build is tested with.
find_package(Threads REQUIRED)
find_package(fmt 9)  # header only: the libraries that we ship need no libfmt
find_package(hwy 1.0.3)
foreach(package fmt hwy)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} is missing. Run scripts/setup.sh, which installs it from Debian, or see CONTRIBUTING.md.")
  endif()
endforeach()

if(DELTAWORKS_TESTS)
  find_package(GTest 1.12 REQUIRED)
endif()
if(DELTAWORKS_BENCHMARKS)
  find_package(benchmark 1.7 REQUIRED)
endif()
