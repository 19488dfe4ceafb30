// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/graph.hpp"

#include <c10/util/Exception.h>

#include <utility>

#include "accelerate/device/graph.hpp"
#include "tests/stand_in/install.hpp"
#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

thread_local bool this_thread_records = false;  // NOLINT: CUDA's thread-local capture mode

class StandInGraph final : public accelerate::device::Graph {
 public:
  void begin() override {
    const auto stream = current_stream(current_device());
    TORCH_CHECK(stream.id() != 0, "standin: the default stream cannot capture");
    const std::lock_guard lock(world().mutex);
    capture_->origin = number_of(stream);
    join_capture(capture_->origin, capture_, {});
    this_thread_records = true;
  }

  void end() override {
    this_thread_records = false;
    const std::lock_guard lock(world().mutex);
    std::erase_if(world().captures, [&](const auto& each) { return each.second == capture_; });
    capture_->ended = true;
    TORCH_CHECK(!capture_->unjoined(), "standin: a capture ended before all of its streams were joined");
  }

  void replay() override {
    for (const auto& host : capture_->at_replay) host();
    std::vector<Touch> touches;
    for (const auto& entry : capture_->entries) {
      touches.insert(touches.end(), entry.touches.begin(), entry.touches.end());
    }
    launch(current_stream(current_device()), "graph", touches, [capture = capture_] {
      for (const auto& entry : capture->entries) entry.job();
    });
  }

 private:
  CapturePtr capture_ = std::make_shared<Capture>();
};

std::unique_ptr<accelerate::device::Graph> make_graph() { return std::make_unique<StandInGraph>(); }

}  // namespace

void Capture::add(int stream, Entry entry) {
  entries.push_back(std::move(entry));
  streams[stream].raise(stream, entries.size());
}

bool Capture::unjoined() const {
  const Clock& all = streams.at(origin);
  for (const auto& [stream, clock] : streams) {
    if (all.of(stream) < clock.of(stream)) return true;
  }
  return false;
}

CapturePtr capture_of(int stream) {
  const auto found = world().captures.find(stream);
  return found == world().captures.end() ? nullptr : found->second;
}

void join_capture(int stream, const CapturePtr& capture, const Clock& after) {
  TORCH_CHECK(!capture->ended, "standin: an event of a capture cannot be waited for");
  const CapturePtr own = capture_of(stream);
  TORCH_CHECK(own == nullptr || own == capture, "standin: two captures cannot wait for each other");
  TORCH_CHECK(stream % kStreams != 0, "standin: the default stream cannot wait for a capture");
  world().captures[stream] = capture;
  capture->streams[stream].join(after);
}

CapturePtr current_capture(c10::DeviceIndex device) {
  const auto stream = number_of(current_stream(device));
  const std::lock_guard lock(world().mutex);
  return capture_of(stream);
}

void refuse_while_recording(const std::string& call) {
  TORCH_CHECK(!this_thread_records, "standin: ", call, " cannot be captured");
}

void refuse_while_recording(const std::string& call, const c10::Stream& stream) {
  refuse_while_recording(call);
  const std::lock_guard lock(world().mutex);
  TORCH_CHECK(capture_of(number_of(stream)) == nullptr, "standin: ", call, " cannot be captured");
}

void install_graphs() {
  static constexpr accelerate::device::GraphRow row{.type = kType, .make = make_graph, .backend = "standin"};
  accelerate::device::add_graphs(row);
}

}  // namespace stand_in
