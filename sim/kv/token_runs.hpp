// Content of a token sequence as maximal runs, without holding tokens.
//
// Token i of segment s is the pair (s, i); a run is `length` consecutive tokens of one segment from
// `offset` on. Sequences are compared, cut and hashed run by run, so the cost follows the number of
// segments, never the number of tokens.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <vector>

namespace oomcast::kv {

struct TokenRun {
  std::uint64_t segment = 0;
  std::int64_t offset = 0;
  std::int64_t length = 0;

  // Whether `next` goes on where this run ends.
  [[nodiscard]] bool continues(const TokenRun& next) const {
    return segment == next.segment && offset + length == next.offset;
  }
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

// A short piece of content, such as the edge of a tree.
using TokenSpan = boost::container::small_vector<TokenRun, 2>;

class TokenRuns {
 public:
  struct Place {
    std::size_t run = 0;
    std::int64_t skip = 0;  // tokens of that run before the place
  };

  void clear();
  // Empty runs are passed over; one that goes on where the last one ends is merged with it.
  void append(TokenRun run);

  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] Place place(std::int64_t position) const;  // 0 <= position <= length()
  // Moves the place `count` tokens on.
  void advance(Place& place, std::int64_t count) const;

  // Tokens at the front of `span` that equal the content from `place` on, `limit` at most.
  [[nodiscard]] std::int64_t common(const TokenSpan& span, Place place, std::int64_t limit) const;
  // The `count` tokens from `place` on.
  void copy(Place place, std::int64_t count, TokenSpan& out) const;
  // Hash of the `count` tokens from `place` on; equal content gives equal hashes.
  [[nodiscard]] std::uint64_t hash(Place place, std::int64_t count) const;

 private:
  std::vector<TokenRun> runs_;
  std::vector<std::int64_t> starts_;  // position of each run
  std::int64_t length_ = 0;
};

// Hash of the first `count` tokens of a span, as TokenRuns::hash.
std::uint64_t hash_front(const TokenSpan& span, std::int64_t count);
// Cuts a span in two: returns the first `count` tokens, leaves the rest in `span`.
TokenSpan cut_front(TokenSpan& span, std::int64_t count);

}  // namespace oomcast::kv
