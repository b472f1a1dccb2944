package rendezvous

import (
	"context"
	"testing"
)

func BenchmarkStore(b *testing.B) {
	for _, transport := range []string{"local", "unix", "tcp"} {
		var c *Client
		switch transport {
		case "local":
			c = NewLocal()
			closeLater(b, c)
		case "unix":
			_, c = serveOn(b, privateAddress(), "")
		case "tcp":
			_, c = serveOn(b, "127.0.0.1:0", NewToken())
		}

		ctx := context.Background()
		calls := map[string]func() error{
			"set": func() error { return c.Set(ctx, "k", []byte("value")) },
			"add": func() error { _, err := c.Add(ctx, "n", 1); return err },
			"get": func() error { _, err := c.Get(ctx, "k"); return err },
		}
		for _, name := range []string{"set", "add", "get"} {
			b.Run(transport+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := calls[name](); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
