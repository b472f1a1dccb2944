package agreement

import (
	"fmt"
	"slices"

	"symmem/event"
	"symmem/internal/ranklist"
)

// Names determines how reports name ranks and pools. It must be the same on all ranks. The zero
// value uses group ranks and pool IDs.
type Names struct {
	// Members holds the number of each rank in the whole job, by group rank. It may be empty.
	Members []int
	// Pool returns the name of a pool, such as "pool 1".
	Pool func(id uint64) string
}

func (n Names) ranks(groupRanks []int) string {
	return ranklist.RanksOf(n.worldRanks(groupRanks), n.Members)
}

// shortRanks is for ranks that the report has already named in full.
func (n Names) shortRanks(groupRanks []int) string {
	if ranklist.NumberedAsWorld(n.Members) {
		return ranklist.Ranks(groupRanks)
	}

	sorted := slices.Sorted(slices.Values(n.worldRanks(groupRanks)))
	return "world " + ranklist.Ranks(sorted)
}

func (n Names) worldRanks(groupRanks []int) []int {
	if len(n.Members) == 0 {
		return groupRanks
	}

	worldRanks := make([]int, len(groupRanks))
	for i, rank := range groupRanks {
		worldRanks[i] = n.Members[rank]
	}

	return worldRanks
}

func (n Names) eventNames() event.Names {
	return event.Names{Pool: n.Pool, Renumbered: !ranklist.NumberedAsWorld(n.Members)}
}

func (n Names) poolName(id uint64) string {
	if n.Pool == nil {
		return fmt.Sprintf("pool %d", id)
	}

	return n.Pool(id)
}

func chooseVerb(ranks []int, singular, plural string) string {
	if len(ranks) == 1 {
		return singular
	}

	return plural
}

func encodeOptionalCall(c *event.Call) []byte {
	if c == nil {
		return nil
	}

	return event.AppendCall(nil, c)
}

const noCall = "no collective"

func (n Names) describeCall(value []byte) (string, error) {
	if len(value) == 0 {
		return noCall, nil
	}

	c, err := event.DecodeCall(value)
	if err != nil {
		return "", protocolError("%w", err)
	}

	return string(c.AppendText(nil, n.eventNames())), nil
}
