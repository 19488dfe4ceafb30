// SPDX-License-Identifier: Apache-2.0
// Content of event files, byte for byte as TensorBoard 2.21's own writer produced it from the same messages.
#include "accelerate/tracking/events.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <zlib.h>

#include "accelerate/tracking/event_record.hpp"
#include "accelerate/tracking/png.hpp"
#include "accelerate/tracking/text.hpp"

using namespace accelerate::tracking;

namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string record_of(const Message& event) { return hex(event_record(event.wire())); }

}  // namespace

TEST_CASE("checksums match RFC 3720") {
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aaU);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43U);
  CHECK(crc32c("123456789") == 0xe3069283U);
  CHECK(crc32c("") == 0U);
}

TEST_CASE("events match TensorBoard's byte for byte") {
  CHECK(record_of(version_event(1.5)) ==
        "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  CHECK(record_of(summary_event({scalar_summary("loss", 0.25), scalar_summary("lr", 1e-3)}, 300, 2.5)) ==
        "2600000000000000734fe30009000000000000044010ac022a180a0b0a046c6f7373150000803e0a090a026c72156f12833a64361c81");
  CHECK(record_of(summary_event({text_summary("note", "hello")}, 1, 2.5)) ==
        "3d000000000000006049f1ec09000000000000044010012a300a2e0a116e6f74652f746578745f73756d6d617279420f080712041202"
        "0801420568656c6c6f4a080a060a0474657874ad259d31");
  const Histogram histogram{.lowest = -1,
                            .highest = 2,
                            .count = 3,
                            .sum = 1.5,
                            .sum_of_squares = 5.25,
                            .limits = {-0.5, 1, 3},
                            .counts = {1, 1, 1}};
  CHECK(
      record_of(summary_event({histogram_summary("w", histogram)}, 1, 2.5)) ==
      "7500000000000000d7d9417809000000000000044010012a680a660a01772a6109000000000000f0bf110000000000000040190000000000"
      "00084021000000000000f83f2900000000000015403218000000000000e0bf000000000000f03f00000000000008403a18000000000000"
      "f03f000000000000f03f000000000000f03feb64385b");
}

TEST_CASE("hyperparameters match TensorBoard's plugin byte for byte") {
  const auto begun = hparams_summaries("digits", {{"lr", 0.5}, {"net", "basic"}, {"fast", true}}, 2.5);
  CHECK(record_of(summary_event({begun[0]}, 0, 2.5)) ==
        "6c00000000000000f5dab0d70900000000000004402a610a5f0a145f68706172616d735f2f6578706572696d656e74420a080112002a04"
        "000000004a3b0a390a0768706172616d73122e122c19000000000000044022060a026c72200322070a036e6574200122080a0466617374"
        "20023206646967697473644b84d9");
  const auto one = hparams_summaries("digits", {{"lr", 0.5}}, 2.5);
  CHECK(record_of(summary_event({one[1]}, 0, 2.5)) ==
        "6a00000000000000af81ed670900000000000004402a5f0a5d0a1c5f68706172616d735f2f73657373696f6e5f73746172745f696e666f"
        "420a080112002a04000000004a310a2f0a0768706172616d7312241a220a0f0a026c72120911000000000000e03f220664696769747329"
        "00000000000004405489fe07");
  CHECK(record_of(summary_event({hparams_end_summary(2.5)}, 0, 2.5)) ==
        "51000000000000009ca1d9bc0900000000000004402a460a440a1a5f68706172616d735f2f73657373696f6e5f656e645f696e666f420a"
        "080112002a04000000004a1a0a180a0768706172616d73120d220b08011100000000000004409e30f0de");
}

TEST_CASE("texts that are not UTF-8 stay readable, because protobuf refuses such messages") {
  CHECK(hex(scalar_summary("\xff", 0.25).wire()) == "0a03efbfbd150000803e");
  CHECK(text_summary("a", "\xc3(").wire().find("\xef\xbf\xbd(") != std::string::npos);
}

TEST_CASE("an image is a PNG with its pixels as rows") {
  const std::string png = png_of({.height = 2, .width = 1, .channels = 3, .pixels = {1, 2, 3, 4, 5, 6}});
  CHECK(hex(png.substr(0, 33)) == "89504e470d0a1a0a0000000d494844520000000100000002080200000016e32170");
  const size_t data = png.find("IDAT") + 4;
  std::string rows(8, '?');
  uLongf size = rows.size();
  REQUIRE(uncompress(reinterpret_cast<Bytef*>(rows.data()), &size, reinterpret_cast<const Bytef*>(png.data() + data),
                     png.size() - data - 16) == Z_OK);
  CHECK(hex(rows) == "0001020300040506");
  CHECK(hex(png.substr(png.size() - 12)) == "0000000049454e44ae426082");
}

TEST_CASE("invalid images are refused") {
  CHECK_THROWS_WITH((void)png_of({.height = 1, .width = 1, .channels = 5, .pixels = {1, 2, 3, 4, 5}}),
                    "log_images: an image has 5 channels, must have 1 to 4");
  CHECK_THROWS_WITH((void)png_of({.height = 0, .width = 4, .channels = 1, .pixels = {}}),
                    "log_images: an image is 0 x 4, sides must be 1 to 1048576");
  CHECK_THROWS_WITH((void)png_of({.height = 2, .width = 2, .channels = 1, .pixels = {1, 2, 3}}),
                    "log_images: an image of 2 x 2 x 1 has 3 bytes, must have 4");
}
