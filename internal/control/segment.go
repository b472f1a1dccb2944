package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"symmem/driver"
)

// CompareSegments checks that all ranks are about to register the same segment with the same size.
// It also sends extra, and returns the extra of each group rank. exchange is Plane.Exchange.
func CompareSegments(
	ctx context.Context,
	exchange func(context.Context, driver.Lane, []byte) ([][]byte, error),
	ranks []int, key driver.SegmentKey, size int64, extra []byte,
) ([][]byte, error) {
	mine := binary.LittleEndian.AppendUint64(nil, key.Pool)
	mine = binary.LittleEndian.AppendUint32(mine, key.Ordinal)
	mine = binary.LittleEndian.AppendUint64(mine, uint64(size))
	all, err := exchange(ctx, driver.LaneControl, slices.Concat(mine, extra))
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
		return nil, fmt.Errorf("%s registers a different segment or size", driver.Ranks(differ))
	}
	return all, nil
}
