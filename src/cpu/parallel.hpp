// How a kernel cuts its rows into tasks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "deltaworks/device.hpp"

namespace deltaworks::cpu {

// body(begin, end) for all rows in tasks of about task_elements. A call that fills no two of them
// stays in one: it costs less than starting a thread.
template <class Body>
void for_rows(const Cpu& device, std::int64_t rows, std::int64_t row_size,
              std::int64_t task_elements, const Body& body) {
  if (rows == 0 || row_size == 0) return;
  const bool is_small = rows <= 2 * task_elements / row_size;
  const std::int64_t per_task =
      is_small ? rows : std::max<std::int64_t>(1, task_elements / row_size);
  device.parallel_for((rows + per_task - 1) / per_task, [&](std::int64_t task) {
    const std::int64_t begin = task * per_task;
    body(begin, std::min(begin + per_task, rows));
  });
}

}  // namespace deltaworks::cpu
