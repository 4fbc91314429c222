// The trace formats, one file each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "workloads/flat_reader.hpp"
#include "workloads/record.hpp"

namespace oomcast::workloads::formats {

FlatFormat azure();
FlatFormat bailian();
FlatFormat burstgpt();
FlatFormat arena();
FlatFormat inferencex();
FlatFormat llmservingsim();
FlatFormat mooncake();
FlatFormat splitwise();
FlatFormat tair();
FlatFormat vidur();
FlatFormat vllm_multiturn();

// Plain CSV or JSON lines with column names that say what they hold; nullopt when input and output
// lengths (that of the output only if `needs_output`) are not among the names. Throws ConfigError
// for a time column without a unit.
std::optional<FlatFormat> plain(const TraceHead& head, const std::string& file, bool needs_output);

}  // namespace oomcast::workloads::formats
