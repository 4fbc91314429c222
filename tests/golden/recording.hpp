// Recordings are JSON Lines, plain or gzip.
#pragma once

#include <istream>
#include <memory>
#include <string>
#include <vector>

namespace oomcast::golden {

// Recordings in a folder, sorted; none if there is no such folder.
std::vector<std::string> recordings(const std::string& folder);

// Plain or gzip. Throws ConfigError.
std::unique_ptr<std::istream> open_recording(const std::string& path);
// The next line; false at the end. Throws ConfigError for a damaged stream or an endless line.
bool next_line(std::istream& in, const std::string& path, std::string& line);

}  // namespace oomcast::golden
