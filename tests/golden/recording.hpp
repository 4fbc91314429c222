// Recordings are JSON Lines, plain or gzip.
#pragma once

#include <istream>
#include <memory>
#include <string>

namespace oomcast::golden {

// Plain or gzip. Throws ConfigError.
std::unique_ptr<std::istream> open_recording(const std::string& path);
// The next line; false at the end. Throws ConfigError for a damaged stream or an endless line.
bool next_line(std::istream& in, const std::string& path, std::string& line);

}  // namespace oomcast::golden
