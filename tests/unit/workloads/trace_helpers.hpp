// Traces written for a test, and streams read to their end.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::workloads {

// A file that lives as long as the object.
class TempFile {
 public:
  explicit TempFile(const std::string& text, const std::string& suffix = ".trace") {
    static int counter = 0;
    path_ =
        (std::filesystem::temp_directory_path() /
         ("oomcast_test_" + std::to_string(::getpid()) + "_" + std::to_string(counter++) + suffix))
            .string();
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::vector<TraceRequest> drain(RequestStream& stream) {
  std::vector<TraceRequest> out;
  while (stream.next_arrival()) {
    stream.take(out.emplace_back());
  }
  return out;
}

inline std::vector<TraceRequest> read_text(const std::string& text,
                                           const TraceOptions& options = {}) {
  const TempFile file(text);
  return drain(*open_trace(file.path(), options));
}

inline std::string refusal(const std::string& text, const TraceOptions& options = {}) {
  try {
    read_text(text, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::string sample(const std::string& name) {
  return std::string(OOMCAST_TEST_DATA) + "/traces/" + name;
}

}  // namespace oomcast::workloads
