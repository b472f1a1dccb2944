package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"symmem/driver"
)

// CompareSegments compares which segment, of which size, the ranks of a group are about to
// register, whatever they agreed before: a window never has memory of different segments or sizes.
// In the same exchange, which is that of a plane, each rank sends more; the result is what all have
// sent, by group rank.
func CompareSegments(
	ctx context.Context,
	exchange func(context.Context, driver.Lane, []byte) ([][]byte, error),
	ranks []int, key driver.SegmentKey, size int64, more []byte,
) ([][]byte, error) {
	mine := binary.LittleEndian.AppendUint64(nil, key.Pool)
	mine = binary.LittleEndian.AppendUint32(mine, key.Ordinal)
	mine = binary.LittleEndian.AppendUint64(mine, uint64(size))
	all, err := exchange(ctx, driver.LaneControl, slices.Concat(mine, more))
	if err != nil {
		return nil, err
	}
	var differ []int
	for r, theirs := range all {
		rest, same := bytes.CutPrefix(theirs, mine)
		if !same {
			differ = append(differ, ranks[r])
		}
		all[r] = rest
	}
	if len(differ) > 0 {
		return nil, fmt.Errorf("%s registers another segment or size", driver.Ranks(differ))
	}
	return all, nil
}
