"""From conversations to packed, pretokenized rows with loss masks, in parquet.

Reads conversations, tokenizers and chat templates; writes rows and their build report.
"""
