#include "sim/search/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"

namespace oomcast::search {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSchema = "oomcast.sweep-journal/1";
constexpr std::size_t kLongestLine = std::size_t{1} << 20;

std::string checksum(std::string_view text) {
  Digest digest;
  digest.add(text);
  return digest.hex();
}

[[noreturn]] void fail(const std::string& path, const std::string& expected,
                       const std::string& hint) {
  throw ConfigError(Problem{path, "", std::strerror(errno), expected, hint});
}

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Journal::Journal(const std::string& out, std::uint64_t key, std::size_t points)
    : folder_(out + ".partial"), path_(folder_ + "/journal") {
  std::error_code error;
  fs::create_directories(folder_, error);
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    fail(path_, "a file that can be written", "choose another --out");
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor_);
    descriptor_ = -1;
    fail(path_, "a sweep that no other process runs", "wait for it, or choose another --out");
  }
  try {
    read(key, points);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

Journal::~Journal() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

// LINE: text, a tab, its checksum. The first is the header.
void Journal::read(std::uint64_t key, std::size_t points) {
  const std::string header = Json{
      {"schema", kSchema},
      {"key", fmt::format("{:016x}", key)},
      {"points", points},
      {"version",
       OOMCAST_VERSION}}.dump();
  std::ifstream in(path_);
  std::string line;
  bool first = true;
  bool whole = true;
  while (std::getline(in, line)) {
    whole = !in.eof();  // a line that was cut has no end
    const auto tab = line.rfind('\t');
    const bool sound = line.size() <= kLongestLine && tab != std::string::npos &&
                       checksum(std::string_view(line).substr(0, tab)) == line.substr(tab + 1);
    const std::string text = sound ? line.substr(0, tab) : "";
    if (first && sound && text != header) {
      throw ConfigError(Problem{
          path_, "", "", "the journal of this sweep",
          "another sweep was stopped here: remove " + folder_ + ", or choose another --out"});
    }
    if (!first && sound) {
      const Json json = parse_json(text, path_);
      const auto point = json.at("point").get<std::size_t>();
      if (point < points) {
        found_.insert_or_assign(point, point_from_json(json.at("result"), path_));
      }
    }
    if (first && !sound) {
      // Cut within its first line: nothing was found yet.
      whole = true;
      if (::ftruncate(descriptor_, 0) != 0) {
        fail(path_, "a file that can be written", "");
      }
      write(header);
    }
    first = false;
  }
  if (first) {
    write(header);
  } else if (!whole && ::write(descriptor_, "\n", 1) != 1) {
    fail(path_, "a file that can be written", "");
  }
}

void Journal::append(std::size_t point, const PointResult& result) {
  write(Json{{"point", point}, {"result", to_json(result)}}.dump(-1, ' ', false,
                                                                 Json::error_handler_t::replace));
}

void Journal::write(const std::string& text) {
  const std::string line = text + "\t" + checksum(text) + "\n";
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      fail(path_, "room on the disk", "the sweep goes on from here once there is");
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (const std::int64_t now = now_seconds(); now != synced_at_) {
    synced_at_ = now;
    if (::fdatasync(descriptor_) != 0) {
      fail(path_, "room on the disk", "the sweep goes on from here once there is");
    }
  }
}

void Journal::remove() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

}  // namespace oomcast::search
