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
	ownPayload := binary.LittleEndian.AppendUint64(nil, key.Pool)
	ownPayload = binary.LittleEndian.AppendUint32(ownPayload, key.Ordinal)
	ownPayload = binary.LittleEndian.AppendUint64(ownPayload, uint64(size))
	all, err := exchange(ctx, driver.LaneControl, slices.Concat(ownPayload, extra))
	if err != nil {
		return nil, err
	}

	var differingRanks []int
	for r, payload := range all {
		rest, isSame := bytes.CutPrefix(payload, ownPayload)
		if !isSame {
			differingRanks = append(differingRanks, ranks[r])
		}

		all[r] = rest
	}

	if len(differingRanks) > 0 {
		return nil, fmt.Errorf("%s registers a different segment or size", driver.Ranks(differingRanks))
	}

	return all, nil
}
