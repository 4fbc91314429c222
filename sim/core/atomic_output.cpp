#include "sim/core/atomic_output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

[[noreturn]] void cannot_write(const std::string& path, const std::string& reason) {
  throw ConfigError(Problem{path, "", "", "a place that can be written", reason});
}

std::string beside(const fs::path& target) {
  fs::path clean = target;
  if (clean.filename().empty()) {
    clean = clean.parent_path();
  }
  return (clean.parent_path() /
          fmt::format(".{}.part-{}", clean.filename().string(), static_cast<long>(::getpid())))
      .string();
}

}  // namespace

CheckedFile::CheckedFile(std::string path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    cannot_write(path_, std::strerror(errno));
  }
}

CheckedFile::~CheckedFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void CheckedFile::append(std::string_view text) {
  buffer_.append(text);
  if (buffer_.size() >= kBufferBytes) {
    flush();
  }
}

void CheckedFile::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      cannot_write(path_, std::strerror(errno));
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  buffer_.clear();
}

void CheckedFile::close() {
  flush();
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) {
    cannot_write(path_, std::strerror(errno));
  }
}

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), temporary_(beside(path_)), file_(temporary_) {}

AtomicFile::~AtomicFile() {
  if (!committed_) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::commit() {
  file_.close();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    cannot_write(path_, std::strerror(errno));
  }
  committed_ = true;
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.file().append(text);
  file.commit();
}

OutputFolder::OutputFolder(std::string path) : path_(std::move(path)) {
  std::error_code error;
  const fs::path target(path_);
  if (path_.empty()) {
    cannot_write(path_, "the name is empty");
  }
  if (fs::exists(fs::symlink_status(target, error))) {
    if (!fs::is_directory(target, error)) {
      cannot_write(path_, "it exists and is not a folder");
    }
    if (!fs::is_empty(target, error) || error) {
      cannot_write(path_, "the folder exists and is not empty; name another or remove it");
    }
  }
  const fs::path parent = fs::path(beside(target)).parent_path();
  if (!parent.empty()) {
    fs::create_directories(parent, error);
    if (error) {
      cannot_write(path_, error.message());
    }
  }
  staging_ = beside(target);
  fs::remove_all(staging_, error);
  if (!fs::create_directory(staging_, error) || error) {
    cannot_write(path_, error ? error.message() : "it cannot be made");
  }
}

OutputFolder::~OutputFolder() {
  if (!committed_) {
    std::error_code error;
    fs::remove_all(staging_, error);
  }
}

std::string OutputFolder::staged(std::string_view name) const {
  return (fs::path(staging_) / name).string();
}

void OutputFolder::write(std::string_view name, std::string_view text) const {
  CheckedFile file(staged(name));
  file.append(text);
  file.close();
}

void OutputFolder::commit() {
  std::string clean = path_;
  while (clean.size() > 1 && clean.back() == '/') {
    clean.pop_back();
  }
  // rename() replaces an empty folder in one step.
  if (::rename(staging_.c_str(), clean.c_str()) != 0) {
    cannot_write(path_, std::strerror(errno));
  }
  committed_ = true;
}

}  // namespace oomcast
