#include "workloads/byte_source.hpp"

#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "sim/core/error.hpp"

namespace oomcast::workloads {

namespace detail {

// Bytes, one way or another. 0 at the end; throws std::exception for damaged or cut data.
class ByteInput {
 public:
  ByteInput() = default;
  virtual ~ByteInput() = default;
  ByteInput(const ByteInput&) = delete;
  ByteInput& operator=(const ByteInput&) = delete;
  virtual std::size_t read(char* into, std::size_t count) = 0;
};

}  // namespace detail

namespace {

using detail::ByteInput;

constexpr std::size_t kChunk = std::size_t{1} << 16;

struct CutOff : std::runtime_error {
  CutOff() : std::runtime_error("the compressed data ends in the middle") {}
};

class FileInput : public ByteInput {
 public:
  explicit FileInput(const std::string& path) {
    if (path == "-") {
      descriptor_ = STDIN_FILENO;
      return;
    }
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      throw ConfigError(Problem{path, "", "a folder", "a trace file", ""});
    }
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) {
      throw ConfigError(Problem{path, "", "", "a readable file", std::strerror(errno)});
    }
  }
  ~FileInput() override {
    if (descriptor_ > STDIN_FILENO) {
      ::close(descriptor_);
    }
  }

  std::size_t read(char* into, std::size_t count) override {
    if (given_back_ > 0) {
      const std::size_t taken = std::min(count, given_back_);
      std::memcpy(into, head_.data() + (head_size_ - given_back_), taken);
      given_back_ -= taken;
      return taken;
    }
    while (true) {
      const ssize_t got = ::read(descriptor_, into, count);
      if (got >= 0) {
        return static_cast<std::size_t>(got);
      }
      if (errno != EINTR) {
        throw std::runtime_error(std::strerror(errno));
      }
    }
  }

  // The first bytes, which later reads give again.
  std::string_view peek_head() {
    while (head_size_ < head_.size()) {
      const std::size_t got = read(head_.data() + head_size_, head_.size() - head_size_);
      if (got == 0) {
        break;
      }
      head_size_ += got;
    }
    given_back_ = head_size_;
    return {head_.data(), head_size_};
  }

 private:
  int descriptor_ = -1;
  std::array<char, 4> head_{};
  std::size_t head_size_ = 0;
  std::size_t given_back_ = 0;
};

class TextInput : public ByteInput {
 public:
  explicit TextInput(std::string text) : text_(std::move(text)) {}
  std::size_t read(char* into, std::size_t count) override {
    const std::size_t taken = std::min(count, text_.size() - at_);
    std::memcpy(into, text_.data() + at_, taken);
    at_ += taken;
    return taken;
  }

 private:
  std::string text_;
  std::size_t at_ = 0;
};

// Members of a gzip file, one behind the other.
class GzipInput : public ByteInput {
 public:
  explicit GzipInput(std::unique_ptr<ByteInput> raw)
      : raw_(std::move(raw)),
        stream_(std::make_unique<inflate_state>()),
        compressed_(kChunk, '\0') {
    isal_inflate_init(stream_.get());
    stream_->crc_flag = ISAL_GZIP;
  }

  std::size_t read(char* into, std::size_t count) override {
    const auto room = static_cast<std::uint32_t>(std::min(count, kMostAtOnce));
    stream_->next_out = reinterpret_cast<std::uint8_t*>(into);
    stream_->avail_out = room;
    while (stream_->avail_out == room) {
      const bool ended = stream_->avail_in == 0 && !refill();
      if (stream_->block_state == ISAL_BLOCK_FINISH) {
        if (ended) {
          return 0;
        }
        isal_inflate_reset(stream_.get());
        stream_->crc_flag = ISAL_GZIP;
      }
      if (isal_inflate(stream_.get()) < 0) {
        throw std::runtime_error("the compressed data is damaged");
      }
      // Without input it still hands out what it holds, and that the member is over.
      if (ended && stream_->avail_out == room && stream_->block_state != ISAL_BLOCK_FINISH) {
        throw CutOff();
      }
    }
    return room - stream_->avail_out;
  }

 private:
  static constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // the library counts in 32 bits

  bool refill() {
    stream_->next_in = reinterpret_cast<std::uint8_t*>(compressed_.data());
    stream_->avail_in =
        static_cast<std::uint32_t>(raw_->read(compressed_.data(), compressed_.size()));
    return stream_->avail_in > 0;
  }

  std::unique_ptr<ByteInput> raw_;
  std::unique_ptr<inflate_state> stream_;
  std::string compressed_;
};

class ZstdInput : public ByteInput {
 public:
  explicit ZstdInput(std::unique_ptr<ByteInput> raw)
      : raw_(std::move(raw)),
        stream_(ZSTD_createDStream()),
        compressed_(ZSTD_DStreamInSize(), '\0') {
    // A hostile frame may ask for a window of gigabytes.
    constexpr int kLargestWindowLog = 27;
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLargestWindowLog);
  }

  std::size_t read(char* into, std::size_t count) override {
    ZSTD_outBuffer out{into, count, 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size) {
        in_ = {compressed_.data(), raw_->read(compressed_.data(), compressed_.size()), 0};
        if (in_.size == 0) {
          if (inside_frame_) {
            throw CutOff();
          }
          return 0;
        }
      }
      const std::size_t left = ZSTD_decompressStream(stream_.get(), &out, &in_);
      if (ZSTD_isError(left) != 0) {
        throw std::runtime_error(ZSTD_getErrorName(left));
      }
      inside_frame_ = left != 0;
    }
    return out.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::unique_ptr<ByteInput> raw_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  std::string compressed_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_frame_ = false;
};

std::unique_ptr<ByteInput> decompressed(std::unique_ptr<ByteInput> raw, std::string_view head) {
  if (head.starts_with("\x1f\x8b")) {
    return std::make_unique<GzipInput>(std::move(raw));
  }
  if (head == "\x28\xb5\x2f\xfd") {
    return std::make_unique<ZstdInput>(std::move(raw));
  }
  return raw;
}

}  // namespace

LineReader::LineReader(const std::string& path) : name_(path == "-" ? "standard input" : path) {
  auto file = std::make_unique<FileInput>(path);
  std::string_view head;
  try {
    head = file->peek_head();
  } catch (const std::runtime_error& error) {
    throw ConfigError(Problem{name_, "", "", "a readable file", error.what()});
  }
  input_ = decompressed(std::move(file), head);
}

LineReader::LineReader(std::string text, std::string name) : name_(std::move(name)) {
  const std::string head = text.substr(0, 4);
  input_ = decompressed(std::make_unique<TextInput>(std::move(text)), head);
}

LineReader::~LineReader() = default;

std::string LineReader::place() const { return fmt::format("line {}", line_number_); }

void LineReader::refill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() - end_ < kChunk) {
    buffer_.resize(std::max(buffer_.size() * 2, end_ + kChunk));
  }
  std::size_t got = 0;
  try {
    got = input_->read(buffer_.data() + end_, buffer_.size() - end_);
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    throw ConfigError(Problem{name_, fmt::format("after line {}", line_number_), "",
                              "a whole, undamaged file", error.what()});
  }
  exhausted_ = got == 0;
  end_ += got;
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = begin_;
  while (true) {
    const void* found =
        searched < end_ ? std::memchr(buffer_.data() + searched, '\n', end_ - searched) : nullptr;
    if (found != nullptr || exhausted_) {
      if (found == nullptr && begin_ == end_) {
        return false;
      }
      const std::size_t stop =
          found == nullptr
              ? end_
              : static_cast<std::size_t>(static_cast<const char*>(found) - buffer_.data());
      line = std::string_view(buffer_).substr(begin_, stop - begin_);
      line_begin_ = begin_;
      begin_ = found == nullptr ? stop : stop + 1;
      if (line.ends_with('\r')) {
        line.remove_suffix(1);
      }
      if (line_number_++ == 0 && line.starts_with("\xef\xbb\xbf")) {
        line.remove_prefix(3);
      }
      return true;
    }
    if (end_ - begin_ > kMaxLineBytes) {
      throw ConfigError(Problem{name_, fmt::format("line {}", line_number_ + 1), "",
                                fmt::format("lines of at most {} bytes", kMaxLineBytes), ""});
    }
    const std::size_t known = end_ - begin_;
    refill();
    searched = begin_ + known;
  }
}

std::string_view LineReader::peek(std::size_t count) {
  while (end_ - begin_ < count && !exhausted_) {
    refill();
  }
  return std::string_view(buffer_).substr(begin_, std::min(count, end_ - begin_));
}

std::string LineReader::read_rest(std::size_t limit) {
  std::string rest(buffer_, begin_, end_ - begin_);
  begin_ = end_;
  while (!exhausted_) {
    refill();
    rest.append(buffer_, begin_, end_ - begin_);
    begin_ = end_;
    if (rest.size() > limit) {
      throw ConfigError(
          Problem{name_, "", "a larger file", fmt::format("at most {} bytes", limit), ""});
    }
  }
  return rest;
}

void LineReader::skip_to(std::int64_t line) {
  std::string_view passed;
  while (line_number_ < line && next(passed)) {
  }
}

void LineReader::unread() {
  OOMCAST_CHECK(line_number_ > 0, "no line to give back");
  begin_ = line_begin_;
  --line_number_;
}

bool is_rereadable(const std::string& path) {
  struct stat status {};
  return path != "-" && ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace oomcast::workloads
