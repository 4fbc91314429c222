// What lies below the allocator: the memory and the address space of one GPU as its driver hands
// them out.
//
// Assumed of the driver: memory comes in units of 2 MiB, and a request fails if and only if the
// total in use would pass the device's total. There is no fragmentation of physical memory.
// Addresses begin on 2 MiB boundaries.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/units.hpp"

namespace oomcast::allocator {

inline constexpr Bytes kDriverUnit = 2 * kMiB;
// Below this a block's size in units of 512 B fits 31 bits, which the free lists rely on.
inline constexpr Bytes kMaxDeviceBytes = 1024 * kGiB - kDriverUnit;

// Where the next range of addresses lies.
enum class AddressPolicy : std::uint8_t {
  kAscending,   // each starts where the one before ended, the first at 2^40; nothing is reused
  kDescending,  // each ends where the one before started, the first at 2^46; nothing is reused
  kFirstFit,    // the lowest address from 2^40 up at which it fits, as real drivers do
};

struct DeviceConfig {
  Bytes total{};
  // In use before the first call, by this process outside PyTorch (context, libraries, NCCL).
  Bytes base_used{};
  // In use by other processes: lowers what is free, is no part of "this process has".
  Bytes other_processes{};
  AddressPolicy addresses = AddressPolicy::kFirstFit;
  int index = 0;  // as messages name it
};

class Device {
 public:
  // Throws ConfigError for a total outside (0, kMaxDeviceBytes] or uses beyond it.
  explicit Device(const DeviceConfig& config);

  // cudaMalloc: the address, or nullopt when memory does not suffice.
  std::optional<std::int64_t> allocate(Bytes size);
  void release(std::int64_t address, Bytes size);

  // cuMemAddressReserve: addresses without memory. Throws ArithmeticOverflow when the address space
  // is used up.
  std::int64_t reserve_addresses(Bytes size);
  void release_addresses(std::int64_t address, Bytes size);
  // cuMemCreate `count` times, all or none; false when memory does not suffice.
  bool create_pages(Bytes page, std::int64_t count);
  void destroy_pages(Bytes page, std::int64_t count);

  // Memory that this process takes from the driver past the allocator (cudaMalloc by NCCL, graphs,
  // other libraries); false, with nothing taken, when it does not suffice.
  bool take_outside(Bytes size);
  void return_outside(Bytes size);

  [[nodiscard]] Bytes total() const { return config_.total; }
  [[nodiscard]] Bytes used() const { return Bytes{used_}; }
  [[nodiscard]] Bytes free() const { return Bytes{config_.total.count() - used_}; }
  // Most in use at once since the last reset.
  [[nodiscard]] Bytes highest() const { return Bytes{highest_}; }
  void reset_highest() { highest_ = used_; }
  [[nodiscard]] Bytes used_by_process() const { return used() - config_.other_processes; }
  [[nodiscard]] int index() const { return config_.index; }
  // All that decides the device's future, for digests of state.
  [[nodiscard]] std::uint64_t state_digest() const;

 private:
  struct Gap {
    std::int64_t address;
    std::int64_t size;
  };
  bool take(std::int64_t size);

  DeviceConfig config_;
  std::int64_t used_;
  std::int64_t highest_ = 0;
  std::int64_t next_ = 0;  // ascending: the next start; descending: the next end
  std::vector<Gap> gaps_;  // first fit only: free addresses, ascending, never adjacent
};

}  // namespace oomcast::allocator
