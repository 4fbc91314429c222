// Files and folders that appear whole or not at all: written beside, then renamed.
#pragma once

#include <string>
#include <string_view>

namespace oomcast {

// Appends text to a file with full error checks; for files too large to hold.
class CheckedFile {
 public:
  explicit CheckedFile(std::string path);
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;

  void append(std::string_view text);
  // Flushes and closes; throws ConfigError if anything did not reach the disk.
  void close();

 private:
  void flush();
  std::string path_;
  std::string buffer_;
  int descriptor_ = -1;
};

// One file: written beside its name, which commit() gives it. Destroyed without commit, it leaves
// nothing behind. Throws ConfigError (path, reason).
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  CheckedFile& file() { return file_; }
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  CheckedFile file_;
  bool committed_ = false;
};

// Writes `text` to `path` through a temporary file beside it. Throws ConfigError (path, reason) and
// leaves nothing behind when the place cannot be written or the disk is full.
void write_file_atomically(const std::string& path, std::string_view text);

// A new result folder. Files are written into a hidden sibling; commit() renames it to the final
// name. Destroyed without commit, it removes what it wrote.
class OutputFolder {
 public:
  // Throws ConfigError if `path` exists and is not an empty folder, or its parent cannot be made.
  explicit OutputFolder(std::string path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Where `name` is to be written now.
  [[nodiscard]] std::string staged(std::string_view name) const;
  void write(std::string_view name, std::string_view text) const;
  void commit();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string staging_;
  bool committed_ = false;
};

}  // namespace oomcast
