package symmem

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"symmem/driver"
)

// When a group fails, its ranks exchange reports of what they have seen. Rank 0 may have waited in
// vain for rank 2, while rank 1 has seen that the process of rank 2 has ended. Each rank selects a
// cause from the reports, and proposes it to the group. The first proposal is the decision, and all
// ranks return its cause. A rank that is missing in the exchange could know more, so the others
// wait for it for a while before they select a cause.

// decision is the cause on which the ranks of a group have agreed.
type decision struct {
	// Text is the text of the cause. The error from Report can have a shorter text.
	Text   string `json:"text"`
	Report report `json:"report"`
}

// decide proposes cause to the group. It returns the cause of the group's decision, which can be
// the proposal of another rank.
func (inq *inquiry) decide(cause error) error {
	proposal := encodeDecision(cause)
	decided := inq.comm.Decide(proposal)
	if bytes.Equal(proposal, decided) {
		return cause
	}

	return inq.adopt(cause, decided)
}

// maxDecisionText limits the text of a decision that is too large, in bytes.
const maxDecisionText = 64 << 10

// encodeDecision encodes a cause for the other ranks. If the encoding is too large for a message,
// it contains only the text of the cause, which it shortens to maxDecisionText.
func encodeDecision(cause error) []byte {
	text := cause.Error()
	encoded, err := json.Marshal(decision{Text: text, Report: reportOf(cause)})
	isUsable := err == nil && len(encoded) <= driver.MaxPayload
	if isUsable {
		return encoded
	}

	text = text[:min(len(text), maxDecisionText)]
	textOnly := decision{Text: text, Report: report{Kind: kindOther, Text: text}}
	encoded, _ = json.Marshal(textOnly) // cannot fail, because only texts are set
	return encoded
}

// decisionError returns the cause in an encoded decision. It returns ownCause, this rank's own
// error, if the decision cannot be decoded. It also does so if both errors report a mismatch of the
// same call, because ownCause then describes this rank's call.
func decisionError(ownCause error, encoded []byte) error {
	var d decision
	decodeErr := json.Unmarshal(encoded, &d)
	if decodeErr != nil || !d.Report.hasRequiredFields() {
		return ownCause
	}

	if isMismatchOfSameCall(ownCause, d.Report.Mismatch) {
		return ownCause
	}

	err := d.Report.toError()
	if err.Error() == d.Text {
		return err
	}

	return &peerReportError{text: d.Text, err: err}
}

// isMismatchOfSameCall reports whether both errors report a mismatch of the same call. decided is
// nil if the decided cause is no mismatch.
func isMismatchOfSameCall(ownCause error, decided *driver.MismatchError) bool {
	var own *driver.MismatchError
	if decided == nil || !errors.As(ownCause, &own) {
		return false
	}

	return own.Number == decided.Number && own.Launch == decided.Launch
}

// reportCheckInterval is short compared with the default timeout, 30 s.
const reportCheckInterval = 20 * time.Millisecond

// awaitReports waits while the reports of missing ranks could help. The wait, which began at begin,
// ends when
//   - some rank knows a cause, or the group has decided on a cause,
//   - the process of a missing rank has ended, or all missing ranks have left the group, or
//   - three quarters of the group's timeout have passed.
func (inq *inquiry) awaitReports(all *reports, begin time.Time) {
	for {
		lost, left := inq.comm.Departed()
		all.lostRanks = ranksInBoth(all.missingRanks, lost)
		all.leftRanks = ranksInBoth(all.missingRanks, left)
		all.waited = time.Since(begin).Round(time.Millisecond)
		hasLost := len(all.lostRanks) > 0
		haveAllLeft := len(all.leftRanks) == len(all.missingRanks) // true if no rank is missing
		isLate := all.waited >= inq.limit.Get()*3/4
		if all.hasCause() || hasLost || haveAllLeft || isLate {
			return
		}

		decided := inq.comm.Decide(nil) // asks without a proposal
		if decided != nil {
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
