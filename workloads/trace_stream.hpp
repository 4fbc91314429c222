// Rows of a file as a stream of requests by arrival.
#pragma once

#include <functional>
#include <memory>

#include "workloads/request_stream.hpp"
#include "workloads/row_reader.hpp"

namespace oomcast::workloads {

// `name` is the file's, for messages; `open` gives the rows from their start, each time it is
// called.
//
// `rereadable`: the rows are read once before, to check them all and to learn how late a row can
// stand behind later arrivals. A file made of a few ordered runs (traces one behind the other) is
// then merged from that many readers; else the rows within that span are held and sorted. A source
// that cannot be read twice must be in order up to a window of some thousand rows.
std::unique_ptr<RequestStream> stream_rows(
    const std::function<std::unique_ptr<SeekableRowReader>()>& open, bool rereadable,
    const std::string& name);

}  // namespace oomcast::workloads
