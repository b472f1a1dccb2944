package symmem

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"symmem/driver"
)

// decision is the cause of a group's failure, encoded for other ranks. After a failure, the ranks
// exchange reports, for example that a process has ended. Each rank then proposes a cause, and all
// ranks accept the proposal that was made first.
type decision struct {
	Text   string `json:"text"`   // text of the cause
	Report report `json:"report"` // fields of the cause; omits the text of wrapping errors
}

// decide proposes a cause to the group, and returns the cause that the group has accepted.
func (inq *inquiry) decide(cause error) error {
	proposal := encodeCause(cause)
	decided := inq.comm.Decide(proposal)
	if bytes.Equal(proposal, decided) {
		return cause
	}

	return inq.adopt(cause, decided)
}

const maxShortenedText = 64 << 10 // bytes

// encodeCause encodes a cause or, if the report does not fit into a message, its shortened text.
func encodeCause(cause error) []byte {
	text := cause.Error()
	encoded, err := json.Marshal(decision{Text: text, Report: reportOf(cause)})
	fitsInMessage := err == nil && len(encoded) <= driver.MaxPayload
	if fitsInMessage {
		return encoded
	}

	text = text[:min(len(text), maxShortenedText)]
	textOnly := decision{Text: text, Report: report{Kind: kindOther, Text: text}}
	encoded, _ = json.Marshal(textOnly) // cannot fail
	return encoded
}

// decodeCause decodes the group's decision. If the decision is invalid, it returns ownCause. It
// also does so for the same mismatch, because ownCause contains this rank's call.
func decodeCause(ownCause error, encoded []byte) error {
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

func isMismatchOfSameCall(ownCause error, decided *driver.MismatchError) bool {
	var own *driver.MismatchError
	areMismatches := decided != nil && errors.As(ownCause, &own)
	return areMismatches && own.Number == decided.Number && own.Launch == decided.Launch
}

const reportCheckInterval = 20 * time.Millisecond

// awaitDecision waits for a decision if ranks have sent no report, because one of them may know the
// cause. It updates lostRanks, leftRanks and waited.
func (inq *inquiry) awaitDecision(all *reports, begin time.Time) {
	for {
		lost, left := inq.comm.Departed() // ranks that have crashed, and ranks that have left the group
		all.lostRanks = ranksInBoth(all.missingRanks, lost)
		all.leftRanks = ranksInBoth(all.missingRanks, left)
		all.waited = time.Since(begin).Round(time.Millisecond)
		hasLost := len(all.lostRanks) > 0
		haveAllLeft := len(all.leftRanks) == len(all.missingRanks)
		isLate := all.waited >= inq.limit.Get()*3/4 // leaves time for decide
		if all.hasCause() || hasLost || haveAllLeft || isLate || inq.isDecided() {
			return
		}

		time.Sleep(reportCheckInterval)
	}
}

func (inq *inquiry) isDecided() bool {
	var noProposal []byte
	decided := inq.comm.Decide(noProposal)
	return decided != nil
}

// hasCause reports whether a report names a cause. A PeerError only says that another rank failed.
func (all *reports) hasCause() bool {
	for kind := range all.byKind {
		if kind != kindPeer {
			return true
		}
	}

	return false
}

func ranksInBoth(ranks, others []int) []int {
	return slices.DeleteFunc(slices.Clone(ranks), func(r int) bool {
		return !slices.Contains(others, r)
	})
}
