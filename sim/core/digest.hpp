// Running digests of results (FNV-1a, 64 bit) and a mixer for hash keys.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace oomcast {

// Bijective finaliser of splitmix64: spreads every input bit over all output bits.
constexpr std::uint64_t mix64(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

class Digest {
 public:
  void add(std::string_view text) {
    for (const char letter : text) {
      add_byte(static_cast<unsigned char>(letter));
    }
  }
  // Integers enter as 8 little-endian bytes whatever their width.
  template <std::integral Int>
  void add(Int number) {
    auto bits = static_cast<std::uint64_t>(number);
    for (int i = 0; i < 8; ++i) {
      add_byte(static_cast<unsigned char>(bits & 0xff));
      bits >>= 8;
    }
  }
  // One multiply instead of eight, for digests of our own on hot paths.
  void add_word(std::uint64_t word) { value_ = mix64(value_ ^ word); }

  [[nodiscard]] std::uint64_t value() const { return value_; }
  [[nodiscard]] std::string hex() const;

 private:
  void add_byte(unsigned char byte) {
    value_ ^= byte;
    value_ *= 1099511628211ULL;
  }
  std::uint64_t value_ = 14695981039346656037ULL;
};

}  // namespace oomcast
