# What every file of ours is compiled with.
add_library(deltaworks_warnings INTERFACE)
add_library(deltaworks::warnings ALIAS deltaworks_warnings)
target_compile_options(deltaworks_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wpedantic -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual
  $<$<BOOL:${DELTAWORKS_WERROR}>:-Werror>)
