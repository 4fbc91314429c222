// Recordings of PyTorch's caching allocator, and our allocator run through them.
// Format: README.md beside the recordings.
#pragma once

#include <string>

#include "workloads/byte_source.hpp"

namespace oomcast::golden {

// "" if every recorded field of every call agrees, else the first difference: call, field,
// expected, got. With `picture`, that gets a drawing of our address space at that call. Throws
// ConfigError (file, line, value) for what is no recording, contradicts itself, or was cut off.
std::string check_allocator_recording(workloads::LineReader& in, std::string* picture = nullptr);

}  // namespace oomcast::golden
