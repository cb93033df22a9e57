#include "suffix.h"

#include <algorithm>
#include <stdexcept>

namespace parlay {

// ------------------------------------------------------------------------------------------------------- ChildTable

size_t ChildTable::home(uint64_t key) const {
  key *= 0x9E3779B97F4A7C15u;
  return ((key ^ key >> 32) & 0xffffffff) * slots_.size() >> 32;
}

size_t ChildTable::after(size_t place) const { return place + 1 == slots_.size() ? 0 : place + 1; }

// How far a place lies behind another.
size_t ChildTable::distance(size_t from, size_t to) const { return to >= from ? to - from : to + slots_.size() - from; }

uint32_t ChildTable::find(uint32_t parent, int32_t token) const {
  if (slots_.empty()) return 0;
  const uint64_t key = key_of(parent, token);
  for (size_t i = home(key);; i = after(i)) {
    if (slots_[i].child == 0 || slots_[i].key == key) return slots_[i].child;
  }
}

void ChildTable::insert(uint32_t parent, int32_t token, uint32_t child) {
  if (4 * (used_ + 1) > 3 * slots_.size()) grow();
  const uint64_t key = key_of(parent, token);
  size_t i = home(key);
  while (slots_[i].child != 0) i = after(i);
  slots_[i] = {key, child};
  ++used_;
}

void ChildTable::erase(uint32_t parent, int32_t token) {
  const uint64_t key = key_of(parent, token);
  size_t hole = home(key);
  while (slots_[hole].key != key || slots_[hole].child == 0) hole = after(hole);
  // Whatever would not be found any more across the hole moves into it.
  for (size_t i = after(hole); slots_[i].child != 0; i = after(i)) {
    if (distance(home(slots_[i].key), i) >= distance(hole, i)) {
      slots_[hole] = slots_[i];
      hole = i;
    }
  }
  slots_[hole] = {};
  --used_;
}

void ChildTable::grow() {
  std::vector<Slot> before(more_than(slots_.size()));
  before.swap(slots_);
  for (const Slot& slot : before) {
    if (slot.child == 0) continue;
    size_t i = home(slot.key);
    while (slots_[i].child != 0) i = after(i);
    slots_[i] = slot;
  }
}

// ------------------------------------------------------------------------------------------------------- SuffixTrie

SuffixTrie::SuffixTrie(uint32_t depth, bool latest) : depth_(depth), latest_(latest), nodes_(2) {
  sequences_.emplace_back(&memory_);
  if (depth < 1) throw std::invalid_argument("a suffix trie is at least one token deep");
}

uint32_t SuffixTrie::begin() {
  uint32_t number;
  if (free_sequences_.empty()) {
    number = uint32_t(sequences_.size());
    make_room(sequences_);
    sequences_.emplace_back(&memory_);
  } else {
    number = free_sequences_.back();
    free_sequences_.pop_back();
  }
  Sequence& sequence = sequences_[number];
  sequence = Sequence(&memory_);
  sequence.cursors.assign(depth_, 0);
  sequence.growing = sequence.used = true;
  return number;
}

void SuffixTrie::append(uint32_t sequence, const int32_t* tokens, size_t count) {
  if (sequence >= sequences_.size() || !sequences_[sequence].growing)
    throw std::invalid_argument("this sequence does not grow");
  for (size_t i = 0; i < count; ++i) push(sequence, tokens[i]);
}

void SuffixTrie::push(uint32_t number, int32_t token) {
  Sequence& sequence = sequences_[number];
  if (latest_) renew_places(sequence);
  sequence.tokens.push_back(token);
  ++tokens_;
  const uint32_t size = uint32_t(sequence.tokens.size());
  // The longest string first: a leaf that a shorter one meets has been given its own next token by then.
  for (uint32_t start = size > depth_ ? size - depth_ : 0; start < size; ++start) {
    const uint32_t length = size - start;  // of the string that ends with the new token
    uint32_t& at = sequence.cursors[start % depth_];
    const uint32_t parent = length == 1 ? kRoot : at;
    if (nodes_[parent].owner != 0) continue;  // its own leaf, which grows with the sequence
    const uint32_t child = children_.find(parent, token);
    if (child == 0) {
      at = make_leaf(parent, token, number, start);
      continue;
    }
    if (nodes_[child].owner != 0) grow_leaf(child, length);
    at = child;
    if (++nodes_[child].count > nodes_[nodes_[parent].best].count) nodes_[parent].best = child;
  }
}

// The strings that end a sequence are about to go on, so that this becomes the latest place of theirs that does.
void SuffixTrie::renew_places(const Sequence& sequence) {
  const uint32_t size = uint32_t(sequence.tokens.size());
  for (uint32_t start = size > depth_ ? size - depth_ : 0; start < size; ++start) {
    Node& node = nodes_[sequence.cursors[start % depth_]];
    if (node.owner == 0) node.start = start;  // a leaf has no other place
  }
}

void SuffixTrie::end(uint32_t sequence) {
  Sequence& ended = sequences_[sequence];
  ended.growing = false;
  ended.cursors = Sequence(&memory_).cursors;
  ended.tokens.shrink_to_fit();
}

// The cursor of a string of a growing sequence; null where there is none.
uint32_t* SuffixTrie::cursor(uint32_t number, uint32_t start) {
  Sequence& sequence = sequences_[number];
  if (!sequence.growing || start + depth_ < sequence.tokens.size()) return nullptr;
  return &sequence.cursors[start % depth_];
}

uint32_t SuffixTrie::make_leaf(uint32_t parent, int32_t token, uint32_t owner, uint32_t start) {
  uint32_t node;
  if (free_nodes_.empty()) {
    node = uint32_t(nodes_.size());
    make_room(nodes_);
    nodes_.emplace_back();
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Node& leaf = nodes_[node];
  leaf = {};
  leaf.count = 1;
  leaf.token = token;
  leaf.parent = parent;
  leaf.owner = owner;
  leaf.start = start;
  Node& above = nodes_[parent];
  leaf.next = above.first;
  if (above.first != 0) nodes_[above.first].previous = node;
  above.first = node;
  if (above.best == 0) above.best = node;
  children_.insert(parent, token, node);
  return node;
}

// Makes a leaf, whose string has `length` tokens, a node with the only occurrence so far as the leaf below it.
void SuffixTrie::grow_leaf(uint32_t leaf, uint32_t length) {
  const uint32_t owner = nodes_[leaf].owner, start = nodes_[leaf].start;
  nodes_[leaf].owner = 0;
  const std::pmr::vector<int32_t>& tokens = sequences_[owner].tokens;
  if (length == depth_ || start + length == tokens.size()) return;
  const uint32_t below = make_leaf(leaf, tokens[start + length], owner, start);
  if (uint32_t* at = cursor(owner, start)) *at = below;
}

bool SuffixTrie::remove(uint32_t number, size_t count) {
  if (number >= sequences_.size() || !sequences_[number].used)
    throw std::invalid_argument("there is no such sequence");
  if (sequences_[number].growing) end(number);
  Sequence& sequence = sequences_[number];
  const size_t size = sequence.tokens.size();
  for (; count > 0 && sequence.removed < size; --count) remove_from(number, sequence.removed++);
  if (sequence.removed < size) return false;
  tokens_ -= size;
  sequence = Sequence(&memory_);
  free_sequences_.push_back(number);
  return true;
}

void SuffixTrie::remove_from(uint32_t number, uint32_t start) {
  const std::pmr::vector<int32_t>& tokens = sequences_[number].tokens;
  const size_t end = std::min<size_t>(tokens.size(), size_t(start) + depth_);
  uint32_t node = kRoot;
  for (size_t i = start; i < end; ++i) {
    const uint32_t child = children_.find(node, tokens[i]);
    const bool last = nodes_[child].count == 1;
    --nodes_[child].count;
    if (last) {  // and so it is for all that is longer
      // Strings of this occurrence that other removals left without a leaf hang below, one by one.
      uint32_t deepest = child;
      while (nodes_[deepest].first != 0) deepest = nodes_[deepest].first;
      for (uint32_t above = 0; above != node; deepest = above) {
        above = nodes_[deepest].parent;
        unlink(deepest);
      }
      break;
    }
    if (nodes_[node].best == child) find_best(node);
    node = child;
  }
  for (uint32_t up = node; up != kRoot; up = nodes_[up].parent) shrink(up);
}

// Makes a node whose only occurrence goes on in a leaf that leaf itself.
void SuffixTrie::shrink(uint32_t node) {
  const uint32_t leaf = nodes_[node].first;
  if (nodes_[node].count != 1 || leaf == 0 || nodes_[leaf].owner == 0) return;
  const uint32_t owner = nodes_[leaf].owner, start = nodes_[leaf].start;
  unlink(leaf);
  nodes_[node].owner = owner;
  nodes_[node].start = start;
  uint32_t* at = cursor(owner, start);
  if (at != nullptr && *at == leaf) *at = node;
}

void SuffixTrie::unlink(uint32_t node) {
  const Node gone = nodes_[node];
  children_.erase(gone.parent, gone.token);
  if (gone.next != 0) nodes_[gone.next].previous = gone.previous;
  if (gone.previous != 0) {
    nodes_[gone.previous].next = gone.next;
  } else {
    nodes_[gone.parent].first = gone.next;
  }
  nodes_[node] = {};
  free_nodes_.push_back(node);
  if (nodes_[gone.parent].best == node) find_best(gone.parent);
}

void SuffixTrie::find_best(uint32_t node) {
  uint32_t best = nodes_[node].first;
  for (uint32_t child = best; child != 0; child = nodes_[child].next) {
    if (nodes_[child].count >= nodes_[best].count) best = child;  // the oldest of the most frequent
  }
  nodes_[node].best = best;
}

// All matches are tried, longest first; ties stay with the longer one.

Guess SuffixTrie::guess(uint32_t sequence, const Limits& limits) const {
  if (sequence >= sequences_.size() || !sequences_[sequence].growing)
    throw std::invalid_argument("this sequence does not grow");
  const Sequence& text = sequences_[sequence];
  const uint32_t size = uint32_t(text.tokens.size());
  Guess best;
  for (uint32_t match = std::min(depth_, size); match-- > 1;) {
    const uint32_t node = text.cursors[(size - match) % depth_];
    if (nodes_[node].owner == 0) follow(node, match, limits, best);  // a leaf would be this very place
  }
  return best;
}

Guess SuffixTrie::guess_after(const int32_t* tokens, size_t count, const Limits& limits) const {
  const int32_t* const end = tokens + count;
  std::vector<uint32_t> matches;  // nodes of the last 1, 2, ... tokens
  for (size_t match = 1; match < std::min<size_t>(depth_, count); ++match) {
    const uint32_t node = find(end - match, match);
    if (node == 0) break;  // nor does a longer string occur
    matches.push_back(node);
  }
  Guess best;
  for (size_t match = matches.size(); match > 0; --match) follow(matches[match - 1], uint32_t(match), limits, best);
  return best;
}

std::vector<int32_t> SuffixTrie::lookup(uint32_t sequence, uint32_t least, size_t most, uint32_t longest) const {
  if (sequence >= sequences_.size() || !sequences_[sequence].growing)
    throw std::invalid_argument("this sequence does not grow");
  if (sequences_.size() > 2) throw std::invalid_argument("places are known in a trie of one sequence only");
  const Sequence& text = sequences_[sequence];
  const uint32_t size = uint32_t(text.tokens.size());
  for (uint32_t length = std::min({depth_, size, longest}); length >= std::max(least, 1u); --length) {
    const Node& node = nodes_[text.cursors[(size - length) % depth_]];
    if (node.owner != 0) continue;  // a leaf would be this very place
    const auto next = text.tokens.begin() + node.start + length;
    return {next, next + std::min<size_t>(most, text.tokens.end() - next)};
  }
  return {};
}

Branches SuffixTrie::branch(uint32_t sequence, const Limits& limits) const {
  return grow(guess(sequence, limits), limits);
}

Branches SuffixTrie::branch_after(const int32_t* tokens, size_t count, const Limits& limits) const {
  return grow(guess_after(tokens, count, limits), limits);
}

// How many tokens may be guessed after a match.
uint32_t SuffixTrie::longest(uint32_t match, const Limits& limits) const {
  const float wished = float(match) * limits.factor + limits.offset + 1e-6f;
  return std::min({limits.most, depth_ - match, uint32_t(std::clamp(wished, 0.0f, 1e6f))});
}

// Follows the most frequent children of the node of a string of `match` tokens; the string may end inside of a leaf.
void SuffixTrie::follow(uint32_t node, uint32_t match, const Limits& limits, Guess& best) const {
  const uint32_t most = longest(match, limits);
  if (float(most) <= best.score) return;  // no probability exceeds 1
  Guess guess;
  guess.match = match;
  guess.node = node;
  float prob = 1;
  while (guess.tokens.size() < most) {
    const Node& from = nodes_[node];
    int32_t token;
    if (from.owner != 0) {
      const std::pmr::vector<int32_t>& tokens = sequences_[from.owner].tokens;
      const size_t next = from.start + match + guess.tokens.size();
      if (next >= tokens.size()) break;
      token = tokens[next];
    } else {
      if (from.best == 0) break;
      prob *= float(nodes_[from.best].count) / float(from.count);
      if (prob < limits.min_prob) break;
      token = nodes_[from.best].token;
      node = from.best;
    }
    guess.tokens.push_back(token);
    guess.probs.push_back(prob);
    guess.score += prob;
  }
  if (guess.score > best.score) best = std::move(guess);
}

// Of all strings that went on where the best chain begins, takes the likeliest, one token after another. No token is
// likelier than the one before it, so what is taken is a tree.
Branches SuffixTrie::grow(const Guess& best, const Limits& limits) const {
  struct Open {
    float prob;
    uint32_t order, node, length;  // the node of the string, or the leaf inside of which it ends; its tokens
    int32_t token, parent;
  };
  const auto worse = [](const Open& a, const Open& b) {
    return a.prob != b.prob ? a.prob < b.prob : a.order > b.order;
  };
  std::vector<Open> open, taken;
  uint32_t order = 0;
  const uint32_t deepest = best.match + longest(best.match, limits);
  const auto go_on = [&](uint32_t node, uint32_t length, float prob, int32_t parent) {
    const auto add = [&](float prob, uint32_t node, int32_t token) {
      open.push_back({prob, order++, node, length + 1, token, parent});
      std::push_heap(open.begin(), open.end(), worse);
    };
    const Node& from = nodes_[node];
    if (length >= deepest) return;
    if (from.owner != 0) {
      const std::pmr::vector<int32_t>& tokens = sequences_[from.owner].tokens;
      if (from.start + length < tokens.size()) add(prob, node, tokens[from.start + length]);
      return;
    }
    for (const uint32_t child : likely(node, limits.min_prob / prob))
      add(prob * (float(nodes_[child].count) / float(from.count)), child, nodes_[child].token);
  };
  if (!best.tokens.empty()) go_on(best.node, best.match, 1, -1);
  while (!open.empty() && taken.size() < limits.most) {
    std::pop_heap(open.begin(), open.end(), worse);
    taken.push_back(open.back());
    open.pop_back();
    const Open next = taken.back();
    go_on(next.node, next.length, next.prob, int32_t(taken.size()) - 1);
  }
  // Likelier children were taken before their siblings; each is followed to its end before the next.
  Branches made;
  made.score = best.score;
  std::vector<std::vector<int32_t>> below(taken.size() + 1);
  for (size_t i = taken.size(); i-- > 0;) below[taken[i].parent + 1].push_back(int32_t(i));
  std::vector<std::pair<int32_t, int32_t>> left;  // who comes next, and where its parent stands
  for (const int32_t child : below[0]) left.emplace_back(child, -1);
  while (!left.empty()) {
    const auto [node, parent] = left.back();
    left.pop_back();
    const int32_t place = int32_t(made.tokens.size());
    made.tokens.push_back(taken[node].token);
    made.parents.push_back(parent);
    made.probs.push_back(taken[node].prob);
    for (const int32_t child : below[node + 1]) left.emplace_back(child, place);
  }
  return made;
}

// The children that follow with a probability of at least `least`: the one that chains follow, then by frequency.
std::vector<uint32_t> SuffixTrie::likely(uint32_t node, float least) const {
  const Node& from = nodes_[node];
  std::vector<uint32_t> found;
  for (uint32_t child = from.first; child != 0; child = nodes_[child].next)
    if (float(nodes_[child].count) / float(from.count) >= least) found.push_back(child);
  std::sort(found.begin(), found.end(), [&](uint32_t a, uint32_t b) {
    if ((a == from.best) != (b == from.best)) return a == from.best;
    if (nodes_[a].count != nodes_[b].count) return nodes_[a].count > nodes_[b].count;
    return nodes_[a].token < nodes_[b].token;
  });
  return found;
}

// The node of a string, or the leaf inside of which it ends; 0 if it does not occur.
uint32_t SuffixTrie::find(const int32_t* tokens, size_t length) const {
  if (length > depth_) return 0;
  uint32_t node = kRoot;
  for (size_t i = 0; i < length; ++i) {
    if (nodes_[node].owner != 0) {
      const std::pmr::vector<int32_t>& own = sequences_[nodes_[node].owner].tokens;
      const size_t at = nodes_[node].start;
      const bool same = at + length <= own.size() && std::equal(tokens + i, tokens + length, own.begin() + at + i);
      return same ? node : 0;
    }
    node = children_.find(node, tokens[i]);
    if (node == 0) return 0;
  }
  return node;
}

uint32_t SuffixTrie::count(const int32_t* tokens, size_t length) const {
  return length == 0 ? 0 : nodes_[find(tokens, length)].count;
}

size_t SuffixTrie::bytes() const {
  const size_t nodes = nodes_.size() - free_nodes_.size();
  const size_t sequences = sequences_.size() - free_sequences_.size();
  // A child takes 16 bytes in a table that is about two thirds full.
  return nodes * (sizeof(Node) + 24) + tokens_ * sizeof(int32_t) + sequences * sizeof(Sequence);
}

}  // namespace parlay
