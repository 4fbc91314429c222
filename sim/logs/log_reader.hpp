// Reads a log line by line, in bounded memory: figures, ranks, phases and failures of every engine
// start in it (facts: vLLM 2.5-2.6, SGLang 5-6, TensorRT-LLM 7, runtime 1.3).
//
// Starts are told apart by engine, by the container or unit that a line names, and by the first
// lines of a new start. Nothing in a log is an error but a log without a single line of an engine.
#pragma once

#include <string>

#include "sim/logs/engine_log.hpp"

namespace oomcast::logs {

inline constexpr std::size_t kMostLineBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMostRuns = 64;
inline constexpr std::size_t kMostRanks = 256;
inline constexpr std::size_t kMostFailures = 64;

// A file, plain, gzip or zstd; "-" is standard input. Throws ConfigError when it cannot be read or
// holds no line of an engine.
EngineLog read_log(const std::string& path);
// Text in memory, as if it were the file `name`.
EngineLog read_log_text(std::string text, const std::string& name);

}  // namespace oomcast::logs
