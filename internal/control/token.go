package control

import (
	"context"
	"crypto/rand"
	"fmt"

	"symmem/driver"
)

// ShareToken generates a secret on the leading rank and sends it to the others through the store.
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
		return fmt.Errorf("the token has %d bytes instead of %d: the store is not symmem's",
			len(got), len(token))
	}
	copy(token, got)
	return nil
}
