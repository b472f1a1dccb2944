package driver

import "fmt"

// maxCount keeps the byte counts of all ranks together below 2^63.
const maxCount = 1 << 48

// MaxTag is the largest tag of a message.
const MaxTag = 1<<31 - 1

// Validate checks what no backend could do, for the given rank of a group: an operation, type,
// reduction or path that does not exist, a count that is negative or absurd, a root or peer outside
// of the group, a message of a rank to itself.
func (c *Call) Validate(ranks, rank int) error {
	switch {
	case c.Operation >= operations || !c.DataType.Valid() || c.ReduceOp >= ReduceOps:
		return fmt.Errorf("operation, type or reduction is unknown: %w", ErrUnsupported)
	case c.Path >= Paths:
		return fmt.Errorf("path %v: %w", c.Path, ErrUnsupported)
	case c.Count < 0 || c.Count > maxCount:
		return fmt.Errorf("count is not between 0 and %d", int64(maxCount))
	case c.Tag < 0 || c.Tag > MaxTag || c.Tag > 0 && !c.Operation.PointToPoint():
		return fmt.Errorf("tag %d of %v: messages have tags from 0 to %d", c.Tag, c.Operation, MaxTag)
	case c.Splits != nil && c.Operation != AllToAllV:
		return fmt.Errorf("splits of %v", c.Operation)
	case c.Operation == Recv && c.Root == AnySource && ranks > 1:
		return nil
	case c.Root < 0 || c.Root >= ranks:
		return fmt.Errorf("root or peer %d is not between 0 and %d", c.Root, ranks-1)
	case c.Operation.PointToPoint() && c.Root == rank:
		return fmt.Errorf("rank %d cannot send to itself", c.Root)
	case c.Operation == AllReduceRMSNorm:
		return c.Norm.validate(c)
	case c.Operation == AllToAllV && c.Path != PathPlain:
		return fmt.Errorf("%v on the %v path: %w", c.Operation, c.Path, ErrUnsupported)
	case c.Operation == AllToAllV:
		return c.Splits.Validate(ranks)
	}
	return nil
}
