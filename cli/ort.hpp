// ONNX Runtime's C++ interface, without a link to its library: load_runtime() comes first.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>
