package shm

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// steps makes the steps of collectives. In a step every rank posts a line and waits for the lines
// of the others. Only the current collective makes steps.
type steps struct {
	of     *ranks
	waits  *waits
	counts *Counts

	checking         bool   // true if the calls of the current collective are compared
	peerFailedBefore bool   // true if a peer had failed before the collective began
	step             uint64 // last step posted
	// balance is this rank's balance of messages when the collective was called, or 0 if it is not
	// compared; postedBalances are the balances of its two lines.
	balance        uint64
	postedBalances [2]uint64
}

// Begin prepares the steps of a collective, which becomes the current one. compared reports whether
// they compare calls. balance summarises the messages that this rank has sent and received before
// the call: if all are matched, the balances of all ranks add up to 0. It is 0 if it is not
// compared.
//
// If a peer has failed by now, it did not wait for this rank. Then PeerFailedBefore returns true,
// and the collective ends before it writes into memory that the peer may have reused.
func (s *steps) Begin(compared bool, balance uint64) {
	s.checking, s.balance = compared, balance
	s.peerFailedBefore = s.of.peerFailed()
}

// Comparing reports whether the calls of the current collective are compared.
func (s *steps) Comparing() bool { return s.checking }

// Step returns the number of the current step, which was posted last.
func (s *steps) Step() uint64 { return s.step }

// Payload returns the payload that a rank has posted in the current step.
func (s *steps) Payload(rank int) *[spin.LinePayload]byte {
	return &s.of.blocks[rank].lines[s.step&1].payload
}

// Post posts this rank's line with up to 48 bytes of payload, which begins the next step.
func (s *steps) Post(digest uint64, payload unsafe.Pointer, n int) {
	s.step++
	if s.balance|s.postedBalances[s.step&1] != 0 {
		digest = s.addBalance(digest)
	}
	spin.PutLine(unsafe.Pointer(&s.of.me.lines[s.step&1]), s.step, digest, payload, n)
	s.of.wakeSleepers()
}

// addBalance writes this rank's balance next to its line, and returns the digest for the line.
func (s *steps) addBalance(digest uint64) uint64 {
	slot := s.step & 1
	if s.postedBalances[slot] != s.balance {
		s.postedBalances[slot] = s.balance
		spin.StoreRelease64(&s.of.me.lines[slot].balance, s.balance)
	}
	return digest ^ s.balance
}

// ArriveBriefly waits for the lines of all ranks, but only for as long as it may occupy the
// caller's thread.
func (s *steps) ArriveBriefly(poll bool) bool {
	for i, b := range s.of.others {
		if spin.LoadAcquire64(&b.lines[s.step&1].step) < s.step &&
			!s.awaitBriefly(s.of.others[i:], poll) {
			return false
		}
	}
	s.prefetchLine()
	return true
}

// prefetchLine fetches the line that this rank writes in the next step from the caches of the
// peers, while the rank does other things. The peers no longer need it: a rank that has posted the
// current step has read the line of the previous one. The host backend does the same for its
// staging. An all-reduce of 8 bytes on 2 ranks took 209 ns without the two, and 171 ns with them.
func (s *steps) prefetchLine() { spin.PrefetchWrite(unsafe.Pointer(&s.of.me.lines[(s.step+1)&1])) }

// arrive waits for the lines of all ranks.
func (s *steps) arrive(call *driver.Call, ticket uint64) error {
	if s.ArriveBriefly(true) {
		return nil
	}
	return s.ArriveSlowly(call, ticket)
}

// ArriveSlowly waits until the lines of all ranks have arrived, or one never will.
func (s *steps) ArriveSlowly(call *driver.Call, ticket uint64) error {
	step := s.step
	return s.waits.waitSlowly(context.Background(), &waiting{
		word: func(b *block) *uint64 { return &b.lines[step&1].step }, want: step,
		from:       s.of.Others(),
		collective: ticket, operation: call.Operation,
		doing: func() string { return s.CallName(call.Operation, ticket) },
	})
}

// CallName returns the name of a collective for error messages.
func (s *steps) CallName(o driver.Operation, ticket uint64) string {
	return fmt.Sprintf("%v %d of group %s", o, ticket, s.of.cfg.Name())
}

// PeerFailedBefore reports whether a peer had failed before the collective began. That peer did not
// wait for this rank, and may have seen another call.
func (s *steps) PeerFailedBefore() bool { return s.peerFailedBefore }

// PeerFailedBeforeError returns the error of a collective for which PeerFailedBefore is true, and
// whose calls do not differ.
func (s *steps) PeerFailedBeforeError(call *driver.Call, ticket uint64) error {
	return s.waits.peerFault(func() string { return s.CallName(call.Operation, ticket) })
}

// CompareStep compares the calls of the current step. Every rank sees every line, so if two differ,
// every rank differs from another, and all of them stop here before anything is written.
func (s *steps) CompareStep(call *driver.Call, ticket uint64) error {
	if !s.MayDiffer(call.Digest) || !s.checking {
		return nil
	}
	return s.compareBalances(call, ticket)
}

// MayDiffer reports whether CompareStep has to compare in detail: a line of the current step has
// another digest than this rank's call, or this rank has a balance of messages. Go inlines it.
func (s *steps) MayDiffer(digest uint64) bool {
	differ := s.balance
	for _, b := range s.of.others {
		differ |= b.lines[s.step&1].digest ^ digest
	}
	return differ != 0
}

// compareBalances compares in detail if a line has another digest: its rank has made another call,
// or has a balance of messages. If the balance of this rank is 0 and all lines have its digest, all
// balances are 0.
func (s *steps) compareBalances(call *driver.Call, ticket uint64) error {
	var others []int
	var sum uint64
	for r, b := range s.of.blocks {
		line := &b.lines[s.step&1]
		balance := spin.LoadAcquire64(&line.balance)
		if line.digest^balance != call.Digest {
			others = append(others, r)
		}
		sum += balance
	}
	switch {
	case len(others) > 0:
		return s.of.cfg.Mismatch(ticket, call, others...)
	case sum != 0:
		return s.counts.Unbalanced(ticket)
	}
	return nil
}

// awaitBriefly waits for the first of some blocks to post the current step, but only for as long as
// it may occupy the caller's thread. It polls if poll is set and few of them are absent.
func (s *steps) awaitBriefly(blocks []*block, poll bool) bool {
	word, polls := &blocks[0].lines[s.step&1].step, s.waits.budget.polls
	var begin uint64
	for turn := range s.waits.budget.briefYields {
		if poll && s.absent(blocks) <= s.waits.budget.parallel &&
			spin.UntilAtLeast64(word, s.step, 0, polls) {
			return true
		}
		s.waits.machine.yield()
		if spin.LoadAcquire64(word) >= s.step {
			return true
		}
		polls = s.waits.budget.morePolls
		if turn%fewYieldsPerCheck == 0 {
			now := sys.Monotonic()
			if begin == 0 {
				begin = now
			}
			if now-begin > briefTime {
				return false
			}
		}
	}
	return false
}

// absent counts the blocks that have not posted the current step.
func (s *steps) absent(blocks []*block) int {
	absent := 0
	for _, b := range blocks {
		if atomic.LoadUint64(&b.lines[s.step&1].step) < s.step {
			absent++
		}
	}
	return absent
}
