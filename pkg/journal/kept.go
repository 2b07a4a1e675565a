package journal

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
)

// keep puts a body under a mac beside the journal, whole or not at all. It need not
// outlive a power cut. use says what for: a body for one use is not taken for another.
func (j *Journal) keep(path, use string, body []byte) error {
	kid := j.keys.Current()
	mac, err := bodyMAC(j.keys, kid, use, body)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", fmt.Appendf(nil, "%s %s\n%s\n", kid, mac, body), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// kept gives the body of such a file; false where there is none that can be trusted.
func (j *Journal) kept(path, use string) ([]byte, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	head, body, _ := bytes.Cut(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	kid, mac, _ := bytes.Cut(head, []byte(" "))
	want, err := bodyMAC(j.keys, string(kid), use, body)
	return body, err == nil && hmac.Equal([]byte(want), mac)
}

func bodyMAC(keys *Keyring, kid, use string, body []byte) (string, error) {
	key, err := keys.Derive(kid, use)
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, key)
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil)), nil
}
