#include "tests/golden/recording.hpp"

#include <algorithm>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <filesystem>
#include <fstream>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast::golden {
namespace {

constexpr std::size_t kMaxLine = std::size_t{1} << 28;

[[noreturn]] void refuse(const std::string& path, std::string value, std::string expected) {
  throw ConfigError(Problem{path, {}, std::move(value), std::move(expected), {}});
}

}  // namespace

std::vector<std::string> recordings(const std::string& folder) {
  std::vector<std::string> files;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().string().find(".jsonl") != std::string::npos) {
        files.push_back(entry.path().string());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<std::istream> open_recording(const std::string& path) {
  auto file = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!*file) {
    refuse(path, "", "a readable file");
  }
  if (file->peek() != 0x1f) {
    return file;
  }
  struct GzipStream : boost::iostreams::filtering_istream {
    explicit GzipStream(std::unique_ptr<std::ifstream> source) : file(std::move(source)) {
      push(boost::iostreams::gzip_decompressor());
      push(*file);
    }
    ~GzipStream() override { reset(); }
    std::unique_ptr<std::ifstream> file;
  };
  return std::make_unique<GzipStream>(std::move(file));
}

bool next_line(std::istream& in, const std::string& path, std::string& line) {
  line.clear();
  std::streambuf& buffer = *in.rdbuf();
  try {
    for (int letter = buffer.sbumpc(); letter != '\n'; letter = buffer.sbumpc()) {
      if (letter == std::char_traits<char>::eof()) {
        return !line.empty();
      }
      line.push_back(static_cast<char>(letter));
      if (line.size() > kMaxLine) {
        refuse(path, "", "lines of at most 256 MiB");
      }
    }
  } catch (const std::ios_base::failure& error) {
    refuse(path, error.what(), "an undamaged gzip stream");
  }
  return true;
}

}  // namespace oomcast::golden
