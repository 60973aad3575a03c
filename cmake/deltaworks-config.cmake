include(${CMAKE_CURRENT_LIST_DIR}/deltaworks-targets.cmake)
