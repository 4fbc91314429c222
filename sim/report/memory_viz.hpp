// snapshot.pickle: what torch.cuda.memory._dump_snapshot writes, for PyTorch's memory_viz viewer,
// `python -m torch.cuda._memory_viz` and Meta's mosaic.
// Format: torch/csrc/cuda/memory_snapshot.cpp, torch/utils/viz/MemoryViz.js (runtime.md 1.11).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/allocator/settings.hpp"
#include "sim/allocator/snapshot.hpp"
#include "sim/allocator/trace.hpp"
#include "sim/core/atomic_output.hpp"

namespace oomcast {

// One line of the viewer's stack, innermost first. Valid UTF-8.
struct VizFrame {
  std::string name;
  std::string filename;
  std::int64_t line = 0;
};

// Writes as it goes: the file may be far larger than memory. Pickle protocol 4 without memo, lists
// in batches of at most 1000, which the viewer's own unpickler needs.
class MemoryVizFile {
 public:
  // `frames` gives the stack of an allocation's tag and is called for each entry and block.
  using FramesOf = std::function<std::vector<VizFrame>(std::uint32_t tag)>;

  // Throws ConfigError when the file cannot be written, here and in what follows.
  MemoryVizFile(const std::string& path, int device_index, FramesOf frames);

  // In order of time. What PyTorch does not trace is passed over.
  void add(const allocator::TraceEvent& event, std::int64_t time_us);
  // Once, last: the memory as it is at the end.
  void finish(const std::vector<allocator::SegmentSnapshot>& segments,
              const allocator::AllocatorSettings& settings);

 private:
  // Parts of the pickle.
  void text(std::string_view value);
  void integer(std::int64_t value);
  void real(double value);
  void boolean(bool value);
  void op(char code) { out_ += code; }
  void begin_dict();
  void end_dict();
  // Lists are written as batches: open, then next_item() before each item, then close.
  struct List {
    std::int64_t items = 0;
  };
  void begin_list();
  void next_item(List& list);
  void end_list(const List& list);

  void frames(std::uint32_t tag);
  void segment(const allocator::SegmentSnapshot& segment);
  void settings(const allocator::AllocatorSettings& settings);
  void flush_if_large();

  CheckedFile file_;
  int device_index_;
  FramesOf frames_;
  std::string out_;
  List trace_;
};

}  // namespace oomcast
