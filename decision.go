package symmem

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"symmem/driver"
)

// decision is the cause of a fault (an error that makes a group fail) on which the ranks of a group
// have agreed.
type decision struct {
	// Text is the text of the cause. The error that Report.toError returns may have a shorter text.
	Text   string `json:"text"`
	Report report `json:"report"`
}

// maxDecisionText limits a cause's text, in bytes, if the decision is too large for one message.
const maxDecisionText = 64 << 10

// encodeDecision encodes a cause for the other ranks. If the encoding is too large for a message,
// only a part of the cause's text remains.
func encodeDecision(cause error) []byte {
	d := decision{Text: cause.Error(), Report: reportOf(cause)}
	encoded, err := json.Marshal(d)
	if err != nil || len(encoded) > driver.MaxPayload {
		text := d.Text[:min(len(d.Text), maxDecisionText)]
		d = decision{Text: text, Report: report{Kind: kindOther, Text: text}}
		encoded, _ = json.Marshal(d) // cannot fail, because d contains only strings
	}

	return encoded
}

// decide proposes cause to the group, and returns the cause that the group has agreed on: the
// proposal of this rank or of another.
func (inq *inquiry) decide(cause error) error {
	proposal := encodeDecision(cause)
	result := inq.comm.Decide(proposal)
	if bytes.Equal(proposal, result) {
		return cause
	}

	return inq.adopt(cause, result)
}

// decisionError returns the cause in an encoded decision. If that cause and ownCause are mismatches
// of the same call, decisionError returns ownCause instead: ownCause also describes this rank's
// call. It also returns ownCause if the decision cannot be decoded.
func decisionError(ownCause error, encoded []byte) error {
	var d decision
	decodeErr := json.Unmarshal(encoded, &d)
	if decodeErr != nil || !d.Report.hasRequiredFields() {
		return ownCause
	}

	decided := d.Report.Mismatch // nil if the cause is no mismatch
	var own *driver.MismatchError
	if decided != nil && errors.As(ownCause, &own) {
		isSameCall := own.Number == decided.Number && own.Launch == decided.Launch
		if isSameCall {
			return ownCause
		}
	}

	err := d.Report.toError()
	if err.Error() == d.Text {
		return err
	}

	return &peerReportError{text: d.Text, err: err}
}

const reportCheckInterval = 20 * time.Millisecond

// awaitReports waits for the reports of missing ranks. The wait, which began at begin, ends when
//   - some rank knows a cause, or the group has agreed on a cause,
//   - the process of a missing rank has ended, or all missing ranks have left the group, or
//   - three quarters of the group's timeout have passed.
func (inq *inquiry) awaitReports(all *reports, begin time.Time) {
	for {
		lost, left := inq.comm.Departed()
		all.lostRanks = ranksInBoth(all.missingRanks, lost)
		all.leftRanks = ranksInBoth(all.missingRanks, left)
		all.waited = time.Since(begin).Round(time.Millisecond)
		hasDeparted := len(all.lostRanks) > 0 || len(all.leftRanks) == len(all.missingRanks)
		isLate := all.waited >= inq.limit.Get()*3/4
		if all.hasCause() || hasDeparted || isLate {
			return
		}

		if decided := inq.comm.Decide(nil); decided != nil { // asks without a proposal
			return
		}

		time.Sleep(reportCheckInterval)
	}
}

// hasCause reports whether some rank knows the cause of the fault. A PeerError does not count: it
// only says that other ranks have failed.
func (all *reports) hasCause() bool {
	for kind := range all.byKind {
		if kind != kindPeer {
			return true
		}
	}

	return false
}

// ranksInBoth returns the elements of ranks that others contains, too.
func ranksInBoth(ranks, others []int) []int {
	return slices.DeleteFunc(slices.Clone(ranks), func(r int) bool {
		return !slices.Contains(others, r)
	})
}
