// The data files of models/ (catalog, GPUs, engine flag tables), compiled into the program.
//
// Names are paths relative to models/, e.g. "engines/vllm/flags.json". A data folder given at run
// time (`--data DIR`) has the same layout and wins file by file; files that only it has are added.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/json.hpp"

namespace oomcast::models {

// Reads every .json file below `path`; they win over the compiled-in ones from now on. Call it
// once, before any other thread runs and before anything is looked up. Throws ConfigError if the
// folder cannot be read or holds more than 4096 files or 256 MiB.
void set_data_folder(const std::string& path);

// The text of one file; it lives as long as the program. Throws ConfigError with the nearest name
// if there is no such file.
std::string_view embedded_file(std::string_view name);

// The file parsed, once; it lives until a data folder replaces it. Errors name the file (the one in
// the data folder, if that won).
const Json& embedded_json(std::string_view name);

// All names that start with `prefix`, sorted.
std::vector<std::string> embedded_names(std::string_view prefix = {});

namespace detail {
// Generated at build time by oomcast_embed().
const std::map<std::string_view, std::string_view>& compiled_in_files();
}  // namespace detail

}  // namespace oomcast::models
