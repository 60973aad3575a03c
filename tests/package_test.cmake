# Installs the library, looks at the symbols that it shows, then builds and runs examples/ against it
# as a user's project would.
# cmake -DBUILD=<build folder> -DSOURCE=<root> [-DFLAGS=<compiler flags>] -P package_test.cmake
cmake_minimum_required(VERSION 3.25)
set(work ${BUILD}/package_test)
file(REMOVE_RECURSE ${work})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)

execute_process(COMMAND nm --dynamic --demangle --defined-only ${BUILD}/lib/libdeltaworks.so
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
list(FILTER symbols EXCLUDE REGEX " (typeinfo (name )?for |vtable for )?deltaworks(::|_)")
if(symbols)
  message(FATAL_ERROR "libdeltaworks.so shows symbols of others:\n${symbols}")
endif()

run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE}/examples -B ${work}/build
  -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_CXX_FLAGS=${FLAGS})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/decode)
run(${work}/build/speculative)
