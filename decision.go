package symmem

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"symmem/driver"
)

// decision is the cause of a fault on which the ranks of a group have agreed. In an inquiry, the
// ranks exchange reports of what they know, for example that a process has ended, and each rank
// proposes a cause. The first proposal becomes the decision.
type decision struct {
	Text   string `json:"text"` // the full text, which may be longer than that of Report
	Report report `json:"report"`
}

// decide proposes cause to the group, and returns the cause on which the group has decided.
func (inq *inquiry) decide(cause error) error {
	proposal := encodeDecision(cause)
	decided := inq.comm.Decide(proposal)
	if bytes.Equal(proposal, decided) {
		return cause
	}

	return inq.adopt(cause, decided)
}

const maxShortenedText = 64 << 10 // bytes

// encodeDecision encodes a cause as a message. If the report does not fit, it sends only the text.
func encodeDecision(cause error) []byte {
	text := cause.Error()
	encoded, err := json.Marshal(decision{Text: text, Report: reportOf(cause)})
	fitsInMessage := err == nil && len(encoded) <= driver.MaxPayload
	if fitsInMessage {
		return encoded
	}

	text = text[:min(len(text), maxShortenedText)]
	textOnly := decision{Text: text, Report: report{Kind: kindOther, Text: text}}
	encoded, _ = json.Marshal(textOnly) // strings cannot fail to encode
	return encoded
}

// decisionError returns the cause in an encoded decision, or ownCause, the error of this rank, if
// decoding fails. Of two mismatches of one call, it returns ownCause, which describes this rank's
// side of the call.
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

// isMismatchOfSameCall accepts a nil decided, for a decision that is not a mismatch.
func isMismatchOfSameCall(ownCause error, decided *driver.MismatchError) bool {
	var own *driver.MismatchError
	if decided == nil || !errors.As(ownCause, &own) {
		return false
	}

	return own.Number == decided.Number && own.Launch == decided.Launch
}

const reportCheckInterval = 20 * time.Millisecond

// awaitReports waits for ranks whose reports are missing, because one of them may know the cause.
func (inq *inquiry) awaitReports(all *reports, begin time.Time) {
	for {
		lost, left := inq.comm.Departed()
		all.lostRanks = ranksInBoth(all.missingRanks, lost)
		all.leftRanks = ranksInBoth(all.missingRanks, left)
		all.waited = time.Since(begin).Round(time.Millisecond)
		hasLost := len(all.lostRanks) > 0
		haveAllLeft := len(all.leftRanks) == len(all.missingRanks) // also if no rank is missing
		isLate := all.waited >= inq.limit.Get()*3/4                // leaves time for the decision
		if all.hasCause() || hasLost || haveAllLeft || isLate {
			return
		}

		isDecided := inq.comm.Decide(nil) != nil // queries the decision without a proposal
		if isDecided {
			return
		}

		time.Sleep(reportCheckInterval)
	}
}

// hasCause ignores reports of a PeerError, which only says that another rank failed first.
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
