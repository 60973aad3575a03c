/// Which functions the shared library shows. The build hides every other symbol.
#pragma once

#define DELTAWORKS_EXPORT __attribute__((visibility("default")))
