package action

import (
	"encoding/json"
	"testing"
)

// BenchmarkDecode is the strict decoding of one call.
func BenchmarkDecode(b *testing.B) {
	schema, raw := scale.Schema(), json.RawMessage(`{"namespace":"default","deployment":"web","replicas":3}`)
	for b.Loop() {
		if _, err := scale.Decode(schema, raw); err != nil {
			b.Fatal(err)
		}
	}
}
