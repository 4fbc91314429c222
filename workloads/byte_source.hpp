// Lines of a file or standard input, decompressed by what the first bytes say (gzip, zstd).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace oomcast::workloads {

namespace detail {
class ByteInput;
}

// No line of a trace is longer: sessions of agents take some 4 MB.
inline constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

class LineReader {
 public:
  // "-" reads standard input. Throws ConfigError when the file cannot be read.
  explicit LineReader(const std::string& path);
  // Text already in memory, as if it were the file `name`.
  LineReader(std::string text, std::string name);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end (LF or CRLF) and, for the first one, without a byte order mark;
  // false at the end. `line` lives until the next call. Throws ConfigError (file, line) for a
  // damaged or truncated stream and for a line over the limit.
  bool next(std::string_view& line);

  // Passes over lines until `line_number()` is `line`.
  void skip_to(std::int64_t line);

  // The line just given out will be given again. Once after each next().
  void unread();

  // The first bytes still to come, at most `count`, without taking them. Before the first next().
  std::string_view peek(std::size_t count);

  // All bytes still to come. Throws ConfigError beyond `limit`.
  std::string read_rest(std::size_t limit);

  // Lines given out so far: the number of the current one.
  [[nodiscard]] std::int64_t line_number() const { return line_number_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // "line 17"
  [[nodiscard]] std::string place() const;

 private:
  void refill();

  std::string name_;
  std::unique_ptr<detail::ByteInput> input_;
  std::string buffer_;
  std::size_t begin_ = 0;  // unread bytes are [begin_, end_)
  std::size_t end_ = 0;
  std::size_t line_begin_ = 0;
  bool exhausted_ = false;
  std::int64_t line_number_ = 0;
};

// Can the file be read twice? Not standard input, pipes or sockets.
bool is_rereadable(const std::string& path);

}  // namespace oomcast::workloads
