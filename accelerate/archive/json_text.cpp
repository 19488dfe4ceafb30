// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/json_text.hpp"

#include <string>
#include <utility>
#include <vector>

namespace accelerate::archive {
namespace {

using nlohmann::json;

// Used because nlohmann's parser with a callback searches a whole object whenever a part of it ends.
class JsonBuilder final : public nlohmann::json_sax<json> {
 public:
  JsonBuilder(std::string_view what, const JsonLimits& limits, const Origin& origin)
      : description_(what), limits_(limits), origin_(origin) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    check_depth();
    const auto [place, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) origin_.broken("the {} names {} twice", description_, quote_for_terminal(name));
    named_ = &*place;
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    origin_.broken("the {} is not JSON: {}", description_, error.what());
  }

 private:
  void check_depth() const {
    if (open_.size() > limits_.depth) origin_.broken("the {} is nested more than {} deep", description_, limits_.depth);
  }
  // The reference stays valid while the value is open, because its container gets no other value until then.
  json& place(json value) {
    check_depth();
    if (open_.empty()) return root_ = std::move(value);
    json& container = *open_.back();
    if (container.is_object()) return *named_ = std::move(value);
    if (limits_.array && container.size() >= *limits_.array) {
      origin_.broken("the {} has an array of more than {} numbers", description_, *limits_.array);
    }
    return container.emplace_back(std::move(value));
  }
  bool add(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json value) {
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view description_;
  const JsonLimits& limits_;
  const Origin& origin_;
  json root_;
  std::vector<json*> open_;  // from the outermost to the innermost
  json* named_ = nullptr;    // value of the last key of the innermost object
};

}  // namespace

json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits, const Origin& origin) {
  JsonBuilder builder(what, limits, origin);
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace accelerate::archive
