// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/sync_rule.hpp"

#include <string>

#include "tests/testing.hpp"

using accelerate::gradient::SyncRule;

namespace {

// One letter each:  F forward, f forward under no_sync, ( no_sync opens, ) a scope closes, L local window, W window
// that reduces, b backward. Returns what each backward does: S reduced, l local.
std::string backwards(const std::string& program) {
  SyncRule rule;
  std::string decisions;
  for (const char what : program) {
    if (what == 'F' || what == 'f') rule.forward(what == 'F');
    if (what == 'L' || what == 'W') rule.decide(what == 'W');
    if (what == '(') rule.open_no_sync();
    if (what == ')') rule.close_scope();
    if (what != 'b') continue;
    decisions += rule.sync() ? 'S' : 'l';
    rule.backward();
    if (decisions.back() == 'S') rule.reduced();
  }
  return decisions;
}

}  // namespace

TEST_CASE("a backward is reduced except in no_sync or in a local window") {
  CHECK(backwards("b") == "S");
  CHECK(backwards("FbFb") == "SS");
  CHECK(backwards("(fb)Fb") == "lS");
  CHECK(backwards("(fbfb)Fb") == "llS");
  CHECK(backwards("Lfb)WFb)") == "lS");
}

TEST_CASE("no_sync applies if it is open at the forward") {
  CHECK(backwards("(f)b") == "l");
  CHECK(backwards("(fff)bbFb") == "llS");
  CHECK(backwards("F(f)bb") == "Sl");  // A synchronised, B under no_sync; backward of A, then of B
  CHECK(backwards("F(fb)b") == "SS");
}

TEST_CASE("a rank that omits the model decides as the other ranks") {
  for (const std::string program : {"(fb)Fb", "(fbfb)FbFb", "(f)b", "Lfb)Lfb)WFb)Lfb)", "WFb)(fb)Fb", "Lf)bWF)b"}) {
    CAPTURE(program);
    std::string without;
    for (const char what : program) {
      if (what != 'F' && what != 'f') without += what;
    }
    CHECK(backwards(without) == backwards(program));
  }
}

TEST_CASE("a local window applies regardless of earlier forwards") { CHECK(backwards("FLfb)WFb)") == "lS"); }
