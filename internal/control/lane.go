package control

import (
	"context"
	"fmt"
	"time"

	"symmem/driver"
)

var laneNames = [driver.Lanes]string{
	"agreement", "background agreement", "comparison of splits", "fault report",
}

// ExchangeName returns the name of an exchange on a lane, for errors and warnings.
func ExchangeName(group driver.GroupConfig, lane driver.Lane) string {
	return laneNames[lane] + " of group " + group.Name()
}

// CheckExchange returns an error if the lane does not exist or the payload is too large.
func CheckExchange(lane driver.Lane, payload []byte) error {
	if lane < 0 || lane >= driver.Lanes || len(payload) > driver.MaxPayload {
		return fmt.Errorf("exchanging %d bytes on lane %d: at most %d bytes on %d lanes",
			len(payload), lane, driver.MaxPayload, driver.Lanes)
	}
	return nil
}

// WithDefaultTimeout returns ctx with a deadline after d if ctx has none.
func WithDefaultTimeout(
	ctx context.Context, d time.Duration,
) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
