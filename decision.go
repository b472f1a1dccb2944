package symmem

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"symmem/driver"
)

// decision encodes the cause on which the ranks of a failed group have agreed.
type decision struct {
	Text   string `json:"text"` // may be longer than that of Report
	Report report `json:"report"`
}

// maxDecisionText limits the text, in bytes, of a cause that is too large to encode in full.
const maxDecisionText = 64 << 10

func encodeDecision(cause error) []byte {
	d := decision{Text: cause.Error(), Report: reportOf(cause)}
	encoded, err := json.Marshal(d)
	if err != nil || len(encoded) > driver.MaxPayload {
		text := d.Text[:min(len(d.Text), maxDecisionText)]
		d = decision{Text: text, Report: report{Kind: kindOther, Text: text}}
		encoded, _ = json.Marshal(d) // cannot fail: it contains only strings
	}
	return encoded
}

func (inq *inquiry) decide(cause error) error {
	proposed := encodeDecision(cause)
	decided := inq.comm.Decide(proposed)
	if bytes.Equal(proposed, decided) {
		return cause
	}
	return decidedError(cause, decided)
}

// decidedError returns the error that an encoded decision describes. If own is a MismatchError for
// the same call, it returns own, which also describes this rank's call.
func decidedError(own error, encoded []byte) error {
	var d decision
	if json.Unmarshal(encoded, &d) != nil || !d.Report.valid() {
		return own
	}
	var mismatch *driver.MismatchError
	if decided := d.Report.Mismatch; decided != nil && errors.As(own, &mismatch) &&
		mismatch.Number == decided.Number && mismatch.Launch == decided.Launch {
		return own
	}
	err := d.Report.err()
	if err.Error() == d.Text {
		return err
	}
	return &peerReportError{text: d.Text, err: err}
}

const reporterCheckInterval = 20 * time.Millisecond

// awaitReports waits for missing reports until some rank knows a cause, a missing rank is lost, all
// missing ranks have left, or three quarters of the group's timeout have passed since begin.
func (inq *inquiry) awaitReports(all *reports, begin time.Time) {
	for {
		lost, left := inq.comm.Departed()
		all.lost, all.left = intersection(all.missing, lost), intersection(all.missing, left)
		all.waited = time.Since(begin).Round(time.Millisecond)
		departed := len(all.lost) > 0 || len(all.left) == len(all.missing)
		late := all.waited >= inq.limit.Get()*3/4
		if all.explained() || departed || late || inq.comm.Decide(nil) != nil {
			return
		}
		time.Sleep(reporterCheckInterval)
	}
}

// explained reports whether some rank has reported a cause. A PeerError names none.
func (all *reports) explained() bool {
	for kind := range all.byKind {
		if kind != kindPeer {
			return true
		}
	}
	return false
}

func intersection(ranks, others []int) []int {
	return slices.DeleteFunc(slices.Clone(ranks), func(r int) bool {
		return !slices.Contains(others, r)
	})
}
