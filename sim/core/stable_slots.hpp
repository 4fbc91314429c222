// Slots with stable addresses, so that references survive while others are added. A slot given back
// is the next to be taken.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace oomcast {

template <typename Value, typename Slot>
class StableSlots {
 public:
  Value& operator[](Slot slot) { return *slots_[static_cast<std::size_t>(slot)]; }
  const Value& operator[](Slot slot) const { return *slots_[static_cast<std::size_t>(slot)]; }

  Slot take() {
    if (free_.empty()) {
      slots_.push_back(std::make_unique<Value>());
      return static_cast<Slot>(slots_.size() - 1);
    }
    const Slot slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(Slot slot) { free_.push_back(slot); }
  [[nodiscard]] Slot size() const { return static_cast<Slot>(slots_.size()); }

 private:
  std::vector<std::unique_ptr<Value>> slots_;
  std::vector<Slot> free_;
};

}  // namespace oomcast
