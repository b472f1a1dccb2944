package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"symmem/driver"
)

func TestDecodeFailures(t *testing.T) {
	group := []int{4, 7, 9}
	lost := fmt.Errorf("mapping: %w", &driver.RankLostError{Ranks: []int{7}, InCall: "mapping"})
	for name, c := range map[string]struct {
		reports [][]byte
		text    string
		lost    []int
	}{
		"no rank fails": {reports: make([][]byte, 3)},
		"one rank is out of memory": {
			reports: [][]byte{nil, nil, EncodeFailure(errors.New("out of memory"))},
			text:    "rank 9 failed: out of memory",
		},
		"one rank reports another as lost": {
			reports: [][]byte{EncodeFailure(lost), nil, nil}, text: "rank 4 failed: mapping",
			lost: []int{7},
		},
		"one rank reports a rank outside the group as lost": {
			reports: [][]byte{EncodeFailure(&driver.RankLostError{Ranks: []int{7, 8}}), nil, nil},
			text:    "rank 4 failed",
		},
		"one report is malformed": {
			reports: [][]byte{nil, []byte("no JSON"), nil}, text: "reading the failure of rank 7",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := DecodeFailures(group, c.reports, "registration")
			if (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Fatalf("got error %v, want %q", err, c.text)
			}

			var lost *driver.RankLostError
			if errors.As(err, &lost) != (c.lost != nil) ||
				lost != nil && !slices.Equal(lost.Ranks, c.lost) {
				t.Errorf("got error %#v, want a RankLostError for ranks %v", err, c.lost)
			}
		})
	}
}
