package control

import (
	"context"
	"crypto/rand"
	"fmt"

	"symmem/driver"
)

// ShareToken makes a secret on the rank that leads, and leaves it in the store for the others.
func ShareToken(
	ctx context.Context, store driver.Store, key string, leads bool, token []byte,
) error {
	if leads {
		rand.Read(token)
		return store.Set(ctx, key, token)
	}
	got, err := store.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("fetching the token: %w", err)
	}
	if len(got) != len(token) {
		return fmt.Errorf("the token has %d bytes: the store is not symmem's", len(got))
	}
	copy(token, got)
	return nil
}
