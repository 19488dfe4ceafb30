// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/events.hpp"

#include "accelerate/tracking/png.hpp"
#include "accelerate/tracking/text.hpp"

namespace accelerate::tracking {
namespace {

/// SummaryMetadata: names the TensorBoard plugin that displays the value.
Message plugin_metadata(std::string_view plugin, std::string_view content = "") {
  Message data;
  data.bytes(1, plugin);
  if (!content.empty()) data.bytes(2, content);
  return Message().message(1, data);
}

/// Summary.Value with a tag.
Message tagged(const std::string& tag) { return Message().bytes(1, valid_utf8(tag)); }

constexpr int64_t kDtFloat = 1, kDtString = 7;

/// Summary value that contains only an HParamsPluginData with one member.
Message hparams_summary(const std::string& tag, uint32_t field, const Message& member) {
  const std::string one_zero(sizeof(float), '\0');
  const Message tensor = Message().integer(1, kDtFloat).message(2, Message()).bytes(5, one_zero);
  return tagged(tag).message(8, tensor).message(9, plugin_metadata("hparams", Message().message(field, member).wire()));
}

constexpr int64_t kHparamsString = 1, kHparamsBool = 2, kHparamsNumber = 3;

/// Returns the value as google.protobuf.Value, and its hparams DataType.
std::pair<Message, int64_t> hparam(const Value& value) {
  if (const auto* yes = std::get_if<bool>(&value.kind())) return {Message().integer(4, *yes), kHparamsBool};
  if (const auto number = number_of(value)) return {Message().number(2, *number), kHparamsNumber};
  return {Message().bytes(3, valid_utf8(plain_text(value))), kHparamsString};
}

}  // namespace

Message version_event(double time) { return Message().number(1, time).bytes(3, "brain.Event:2"); }

Message summary_event(const std::vector<Message>& summary, int64_t step, double time) {
  Message values;
  for (const auto& value : summary) values.message(1, value);
  Message event;
  event.number(1, time);
  if (step != 0) event.integer(2, step);
  return event.message(5, values);
}

Message scalar_summary(const std::string& tag, double value) {
  return tagged(tag).number32(2, static_cast<float>(value));
}

Message text_summary(const std::string& tag, const std::string& text) {
  const Message one_element = Message().message(2, Message().integer(1, 1));
  const Message tensor = Message().integer(1, kDtString).message(2, one_element).bytes(8, valid_utf8(text));
  return tagged(tag + "/text_summary").message(8, tensor).message(9, plugin_metadata("text"));
}

Message image_summary(const std::string& tag, const Image& image) {
  const Message picture =
      Message().integer(1, image.height).integer(2, image.width).integer(3, image.channels).bytes(4, png_of(image));
  return tagged(tag).message(4, picture);
}

Message histogram_summary(const std::string& tag, const Histogram& histogram) {
  const Message buckets = Message()
                              .number(1, histogram.lowest)
                              .number(2, histogram.highest)
                              .number(3, histogram.count)
                              .number(4, histogram.sum)
                              .number(5, histogram.sum_of_squares)
                              .numbers(6, histogram.limits)
                              .numbers(7, histogram.counts);
  return tagged(tag).message(5, buckets);
}

std::vector<Message> hparams_summaries(const std::string& name, const Values& config, double time) {
  Message experiment = Message().number(3, time);
  Message session;
  for (const auto& [key, value] : flattened(config)) {
    const auto [content, type] = hparam(value);
    experiment.message(4, Message().bytes(1, valid_utf8(key)).integer(4, type));
    session.message(1, Message().bytes(1, valid_utf8(key)).message(2, content));  // an entry of a protobuf map
  }
  experiment.bytes(6, valid_utf8(name));
  session.bytes(4, valid_utf8(name)).number(5, time);
  return {hparams_summary("_hparams_/experiment", 2, experiment),
          hparams_summary("_hparams_/session_start_info", 3, session)};
}

Message hparams_end_summary(double time) {
  constexpr int64_t success = 1;
  return hparams_summary("_hparams_/session_end_info", 4, Message().integer(1, success).number(2, time));
}

}  // namespace accelerate::tracking
